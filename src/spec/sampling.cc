#include "spec/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/philox.h"

namespace ddtree {
namespace {

Status check_logits(std::span<const float> logits) {
  bool finite_or_masked = true;
  for (const float logit : logits) finite_or_masked &= logit <= std::numeric_limits<float>::max();
  if (finite_or_masked) return {};
  return Error{Code::kCorrupt, "logits are not finite: the model's weights or this request's state are damaged"};
}

Status check_any_left(float highest) {
  if (highest > -std::numeric_limits<float>::infinity()) return {};
  return Error{Code::kInvalidArgument,
               "no token is left to choose: bad_words, min_tokens or a grammar mask all of them"};
}

// Uniform in (0, 1), never the ends.
double uniform(const SamplingParams& params, int32_t choice, int64_t position, int32_t id) {
  const PhiloxCounter words = philox4x32(
      {static_cast<uint32_t>(id), static_cast<uint32_t>(position), static_cast<uint32_t>(choice), 0}, params.seed);
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

// Gumbel-max, as a race: each token arrives after an exponential time of rate `weight`, the first is drawn. (Minus the
// logarithm of such a time is log weight plus Gumbel noise.) Noise belongs to the token, not to the order of the list.
int32_t draw(std::span<const Survivor> survivors, const SamplingParams& params, int32_t choice, int64_t position) {
  double first = std::numeric_limits<double>::infinity();
  int32_t winner = -1;
  for (const auto [id, weight] : survivors) {
    const double u = uniform(params, choice, position, id);
    if (u > first * weight) continue;  // −log(1 − u) ≥ u: it cannot win, and most tokens need no logarithm
    const double time = -std::log1p(-u) / weight;
    if (time > first || (time == first && id > winner)) continue;
    first = time;
    winner = id;
  }
  return winner;
}

}  // namespace

Result<int32_t> sample_row(std::span<float> logits, const SamplingParams& params, const RowHistory& history,
                           int32_t choice, SamplerScratch& scratch) {
  CHECK(!logits.empty());
  TRY(check_logits(logits));
  adjust_logits(logits, params, history, scratch.counts);
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
  TRY(check_any_left(*best));
  if (is_greedy(params)) return static_cast<int32_t>(best - logits.begin());
  return draw(filter_logits(logits, params, scratch.filter), params, choice, history.output_position());
}

Result<std::vector<TokenLogprob>> token_logprobs(std::span<const float> logits, int32_t chosen, int n) {
  CHECK(n >= 0 && chosen >= 0 && chosen < static_cast<int64_t>(logits.size()));
  TRY(check_logits(logits));
  const double highest = *std::max_element(logits.begin(), logits.end());
  TRY(check_any_left(static_cast<float>(highest)));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  const double log_sum = highest + std::log(sum);
  const auto entry = [&](int32_t id) { return TokenLogprob{id, static_cast<float>(logits[id] - log_sum)}; };

  std::vector<TokenLogprob> out = {entry(chosen)};
  std::vector<int32_t> top(logits.size());
  for (size_t i = 0; i < top.size(); ++i) top[i] = static_cast<int32_t>(i);
  const auto end = top.begin() + std::min<size_t>(n, top.size());
  std::partial_sort(top.begin(), end, top.end(),
                    [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  for (auto id = top.begin(); id != end; ++id) out.push_back(entry(*id));
  return out;
}

}  // namespace ddtree
