// Changes to a row's logits that depend on the tokens before it: penalties, bias and masks. In a tree each row has a
// history of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/sampling_params.h"

namespace ddtree {

// The tokens before the one to be chosen: the prompt, the committed output, whose last token is the tree's root, and
// the drafted tokens from there to the row, its own included (empty for the root).
struct RowHistory {
  std::span<const int32_t> prompt, output, path;

  int64_t output_position() const { return static_cast<int64_t>(output.size() + path.size()); }
};

// Penalties, bias, min_tokens, bad words, in this order. Masked tokens (−inf) stay masked, finite logits stay finite
// unless a mask applies. `counts` is scratch, all zeros between calls.
void adjust_logits(std::span<float> logits, const SamplingParams& params, const RowHistory& history,
                   std::vector<int32_t>& counts);

}  // namespace ddtree
