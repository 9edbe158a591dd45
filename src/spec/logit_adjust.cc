#include "spec/logit_adjust.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace ddtree {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

float penalized(float logit, const SamplingParams& p, int32_t output_count) {
  constexpr float kMax = std::numeric_limits<float>::max();
  if (p.repetition_penalty != 1) logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  if (output_count > 0) {
    logit -= p.frequency_penalty * static_cast<float>(output_count);
    logit -= p.presence_penalty;
  }
  return std::clamp(logit, -kMax, kMax);
}

void apply_penalties(std::span<float> logits, const SamplingParams& p, const RowHistory& history,
                     std::vector<int32_t>& counts) {
  const bool repetition = p.repetition_penalty != 1;
  if (!repetition && p.presence_penalty == 0 && p.frequency_penalty == 0) return;
  if (counts.size() < logits.size()) counts.resize(logits.size(), 0);
  for (const auto tokens : {history.output, history.path})
    for (const int32_t id : tokens) {
      CHECK(id >= 0 && id < static_cast<int64_t>(logits.size()));
      ++counts[id];
    }
  // A token is done at its first sight, and its count cleared or, if only the prompt holds it, never set: −1 says done.
  const auto visit = [&](std::span<const int32_t> tokens) {
    for (const int32_t id : tokens) {
      CHECK(id >= 0 && id < static_cast<int64_t>(logits.size()));
      if (counts[id] < 0) continue;
      if (logits[id] != kMasked) logits[id] = penalized(logits[id], p, counts[id]);
      counts[id] = -1;
    }
  };
  const auto clear = [&](std::span<const int32_t> tokens) {
    for (const int32_t id : tokens) counts[id] = 0;
  };
  visit(history.output);
  visit(history.path);
  if (repetition) visit(history.prompt);
  clear(history.output);
  clear(history.path);
  if (repetition) clear(history.prompt);
}

// Whether prompt + output + path end in `words`.
bool ends_with(const RowHistory& history, std::span<const int32_t> words) {
  for (const auto tokens : {history.path, history.output, history.prompt}) {
    const size_t n = std::min(tokens.size(), words.size());
    if (!std::equal(tokens.end() - n, tokens.end(), words.end() - n)) return false;
    words = words.first(words.size() - n);
  }
  return words.empty();
}

}  // namespace

void adjust_logits(std::span<float> logits, const SamplingParams& p, const RowHistory& history,
                   std::vector<int32_t>& counts) {
  apply_penalties(logits, p, history, counts);
  for (const auto& [id, bias] : p.logit_bias) logits[id] += bias;
  if (history.output_position() < p.min_tokens)
    for (const int32_t id : p.stop_ids) logits[id] = kMasked;
  for (const std::vector<int32_t>& words : p.bad_words)
    if (ends_with(history, std::span(words).first(words.size() - 1))) logits[words.back()] = kMasked;
}

}  // namespace ddtree
