#include "spec/logit_filter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"

namespace ddtree {
namespace {

constexpr int kMassBits = 40;

// Larger for a larger logit, then for a lower id.
uint64_t order_key(float logit, int32_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // −0 ranks as +0
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ascending} << 32 | ~static_cast<uint32_t>(id);
}

int32_t id_of(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

class Weigher {
 public:
  Weigher(std::span<const float> logits, float temperature)
      : logits_(logits), highest_(*std::max_element(logits.begin(), logits.end())), temperature_(temperature) {}

  // In double: the quotient of the largest float32 gap and the lowest temperature is far from its limits.
  double operator()(int32_t id) const { return std::exp((logits_[id] - highest_) / temperature_); }

 private:
  std::span<const float> logits_;
  double highest_, temperature_;
};

uint64_t mass(double weight) { return static_cast<uint64_t>(weight * static_cast<double>(uint64_t{1} << kMassBits)); }

// Reduces `order` to its nucleus.
void keep_nucleus(const Weigher& weight, float top_p, std::vector<uint64_t>& order) {
  using Wide = unsigned __int128;
  uint64_t total = 0;
  for (const uint64_t key : order) total += mass(weight(id_of(key)));
  const Wide wanted = Wide{total} * static_cast<uint64_t>(std::ceil(std::ldexp(double{top_p}, 32)));  // in 2^-32
  std::make_heap(order.begin(), order.end());
  auto first = order.end();  // the nucleus gathers at the end
  for (uint64_t sum = 0; first != order.begin() && (Wide{sum} << 32) < wanted; --first) {
    std::pop_heap(order.begin(), first);
    sum += mass(weight(id_of(*(first - 1))));
  }
  order.erase(order.begin(), first);
}

}  // namespace

std::span<const Survivor> filter_logits(std::span<const float> logits, const SamplingParams& p,
                                        FilterScratch& scratch) {
  CHECK_LE(static_cast<int64_t>(logits.size()), kMaxVocab);
  const Weigher weight(logits, p.temperature);
  const auto keep = [&, min_p = double{p.min_p}](int32_t id) {
    const double w = weight(id);
    if (w > 0 && w >= min_p) scratch.survivors.push_back({id, w});
  };
  scratch.survivors.clear();
  if (p.top_k <= 0 && p.top_p >= 1) {
    for (size_t id = 0; id < logits.size(); ++id) keep(static_cast<int32_t>(id));
    return scratch.survivors;
  }
  std::vector<uint64_t>& order = scratch.order;
  order.clear();
  for (size_t id = 0; id < logits.size(); ++id)
    if (logits[id] > -std::numeric_limits<float>::infinity())
      order.push_back(order_key(logits[id], static_cast<int32_t>(id)));
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size()) {
    std::nth_element(order.begin(), order.begin() + p.top_k, order.end(), std::greater<>());
    order.resize(p.top_k);
  }
  if (p.top_p < 1) keep_nucleus(weight, p.top_p, order);
  for (const uint64_t key : order) keep(id_of(key));
  return scratch.survivors;
}

}  // namespace ddtree
