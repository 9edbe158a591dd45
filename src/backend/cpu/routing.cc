#include "backend/cpu/routing.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "backend/cpu/rank_key.h"

namespace ddtree::cpu {
namespace {

// Puts the n first in rank in front, in order.
void best_first(std::vector<uint64_t>& keys, int64_t n) {
  std::partial_sort(keys.begin(), keys.begin() + n, keys.end(), std::greater<>());
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

// The experts of the groups that take part, for ranking.
void Router::list_candidates(Scratch& s) const {
  const auto experts = static_cast<int32_t>(s.biased.size());
  const auto list = [&](int32_t begin, int32_t end) {
    for (int32_t e = begin; e < end; ++e) s.experts.push_back(rank_key(s.biased[static_cast<size_t>(e)], e));
  };
  s.experts.clear();
  if (routing_.top_groups == routing_.groups) return list(0, experts);
  const int32_t width = experts / routing_.groups;
  s.groups.clear();
  for (int32_t g = 0; g < routing_.groups; ++g) {
    s.experts.clear();
    list(g * width, (g + 1) * width);
    const int32_t best = std::min(width, routing_.group_by_top2 ? 2 : 1);
    best_first(s.experts, best);
    float score = rank_value(s.experts[0]);
    if (best == 2) score += rank_value(s.experts[1]);
    s.groups.push_back(rank_key(score, g));
  }
  best_first(s.groups, routing_.top_groups);
  s.experts.clear();
  for (int32_t i = 0; i < routing_.top_groups; ++i) {
    const int32_t g = rank_index(s.groups[static_cast<size_t>(i)]);
    list(g * width, (g + 1) * width);
  }
}

void Router::route(std::span<float> logits, Scratch& s, int32_t* experts, float* weights) const {
  routing_.score == MoeRouting::Score::kSigmoid ? sigmoid(logits) : softmax(logits);
  s.biased.assign(logits.begin(), logits.end());
  for (size_t e = 0; e < bias_.size(); ++e) s.biased[e] += bias_[e];
  list_candidates(s);
  best_first(s.experts, routing_.top_k);
  for (int32_t i = 0; i < routing_.top_k; ++i) experts[i] = rank_index(s.experts[static_cast<size_t>(i)]);
  std::sort(experts, experts + routing_.top_k);
  float sum = 1e-20f;
  for (int32_t i = 0; i < routing_.top_k; ++i) sum += weights[i] = logits[static_cast<size_t>(experts[i])];
  for (int32_t i = 0; i < routing_.top_k; ++i)
    weights[i] = (routing_.normalise ? weights[i] / sum : weights[i]) * routing_.scale;
}

}  // namespace ddtree::cpu
