// How a request wants its tokens chosen.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/result.h"

namespace ddtree {

struct SamplingParams {
  float temperature = 0;  // below kGreedyTemperature: the most probable token
  float top_p = 1;        // 1: off
  float min_p = 0;        // 0: off; else drop what is less probable than min_p times the most probable token
  int32_t top_k = 0;      // −1, 0: off
  uint64_t seed = 0;

  float repetition_penalty = 1;  // of tokens in prompt and output: divides logits above 0, multiplies others
  float presence_penalty = 0;    // subtracted from the logit of every token in the output
  float frequency_penalty = 0;   // the same, times the token's count
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token, what is added to its logit
  std::vector<std::vector<int32_t>> bad_words = {};        // sequences whose last token never follows the others
  int32_t min_tokens = 0;                                  // stop_ids are no choice before so many tokens of output
  std::vector<int32_t> stop_ids = {};

  int32_t logprobs = -1;  // how many top log-probabilities to report with each token; −1: not even its own
};

inline constexpr float kGreedyTemperature = 1e-5f;  // whoever asks for less means the most probable token

// Every field within its limits, every token below `vocab`. The message names the field, its value and the limit.
Status validate(const SamplingParams& params, int32_t vocab);

inline bool is_greedy(const SamplingParams& params) { return params.temperature < kGreedyTemperature; }

// False where the highest raw logit, ties to the lowest id, is all that a row's choice needs.
bool needs_full_logits(const SamplingParams& params);

}  // namespace ddtree
