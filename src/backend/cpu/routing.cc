#include "backend/cpu/routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ddtree::cpu {
namespace {

// Puts the n best of `index` first, in order: descending by value, then ascending by index, NaN last.
void best_first(std::vector<int32_t>& index, std::span<const float> values, int64_t n) {
  std::partial_sort(index.begin(), index.begin() + n, index.end(), [values](int32_t a, int32_t b) {
    const float va = values[static_cast<size_t>(a)], vb = values[static_cast<size_t>(b)];
    if (std::isnan(va) != std::isnan(vb)) return std::isnan(vb);
    return va != vb && !std::isnan(va) ? va > vb : a < b;
  });
}

void iota(std::vector<int32_t>& v, size_t n) {
  v.resize(n);
  std::iota(v.begin(), v.end(), 0);
}

void sigmoid(std::span<float> x) {
  for (float& v : x) v = 1.0f / (1.0f + std::exp(-v));
}

void softmax(std::span<float> x) {
  const float largest = *std::ranges::max_element(x);
  float sum = 0;
  for (float& v : x) sum += v = std::exp(v - largest);
  for (float& v : x) v /= sum;
}

}  // namespace

void Router::list_candidates(Scratch& s) const {
  const auto experts = static_cast<int32_t>(s.biased.size());
  const int32_t width = experts / routing_.groups;
  if (routing_.top_groups == routing_.groups) return iota(s.experts, s.biased.size());
  s.group_score.resize(static_cast<size_t>(routing_.groups));
  for (int32_t g = 0; g < routing_.groups; ++g) {
    s.experts.resize(static_cast<size_t>(width));
    std::iota(s.experts.begin(), s.experts.end(), g * width);
    const int32_t best = std::min(width, routing_.group_by_top2 ? 2 : 1);
    best_first(s.experts, s.biased, best);
    float score = s.biased[static_cast<size_t>(s.experts[0])];
    if (best == 2) score += s.biased[static_cast<size_t>(s.experts[1])];
    s.group_score[static_cast<size_t>(g)] = score;
  }
  iota(s.groups, s.group_score.size());
  best_first(s.groups, s.group_score, routing_.top_groups);
  s.experts.clear();
  for (int32_t i = 0; i < routing_.top_groups; ++i)
    for (int32_t e = 0; e < width; ++e) s.experts.push_back(s.groups[static_cast<size_t>(i)] * width + e);
}

void Router::route(std::span<float> logits, Scratch& s, int32_t* experts, float* weights) const {
  routing_.score == MoeRouting::Score::kSigmoid ? sigmoid(logits) : softmax(logits);
  s.biased.assign(logits.begin(), logits.end());
  for (size_t e = 0; e < bias_.size(); ++e) s.biased[e] += bias_[e];
  list_candidates(s);
  best_first(s.experts, s.biased, routing_.top_k);
  std::copy_n(s.experts.begin(), routing_.top_k, experts);
  std::sort(experts, experts + routing_.top_k);
  float sum = 1e-20f;
  for (int32_t i = 0; i < routing_.top_k; ++i) sum += weights[i] = logits[static_cast<size_t>(experts[i])];
  for (int32_t i = 0; i < routing_.top_k; ++i)
    weights[i] = (routing_.normalise ? weights[i] / sum : weights[i]) * routing_.scale;
}

}  // namespace ddtree::cpu
