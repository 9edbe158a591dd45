// The token after one row, from the target's logits. The choice depends on the row's logits, its own history and the
// request's key (seed, choice, output position) alone, so it is the same in any tree, batch or order of work.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "spec/logit_adjust.h"
#include "spec/logit_filter.h"
#include "spec/sampling_params.h"

namespace ddtree {

struct SamplerScratch {
  std::vector<int32_t> counts;
  FilterScratch filter;
};

// `logits` are the target's, over the whole vocabulary, −inf where a token is masked; they serve as scratch. In order:
// penalties, logit bias, min_tokens, bad words, temperature, top_k, top_p, min_p, draw; at temperature 0 the highest
// logit. Ties go to the lowest id. kCorrupt where a logit is NaN or +inf, kInvalidArgument where every token is masked:
// errors of this row's request only.
Result<int32_t> sample_row(std::span<float> logits, const SamplingParams& params, const RowHistory& history,
                           int32_t choice, SamplerScratch& scratch);

struct TokenLogprob {
  int32_t id;
  float logprob;
};

// Log-softmax of untouched logits (call it before sample_row): of `chosen` first, then of the n most probable tokens,
// most probable first, ties to the lowest id.
Result<std::vector<TokenLogprob>> token_logprobs(std::span<const float> logits, int32_t chosen, int n);

}  // namespace ddtree
