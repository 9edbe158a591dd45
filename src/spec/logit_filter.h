// Which tokens of a row may be drawn, and how they weigh against each other.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/sampling_params.h"

namespace ddtree {

// Tokens a model may have. The masses below, each at most 2^40, then add up in 64 bits.
inline constexpr int64_t kMaxVocab = int64_t{1} << 23;

struct Survivor {
  int32_t id;
  double weight;  // exp((logit − highest logit) / temperature): 1 for the most probable token
};

struct FilterScratch {
  std::vector<uint64_t> order;
  std::vector<Survivor> survivors;
};

// top_k, then top_p of what is left, then min_p, at a temperature above 0. Logits are finite or −inf, and one at least
// is finite; masked tokens never survive. The most probable token always does, the others come in no particular order.
//
// The nucleus is the smallest set of most probable tokens, ties to the lowest id, whose mass reaches top_p. Mass is
// counted in integers of 2^-40 of the most probable token's: the set does not depend on the order of summation.
std::span<const Survivor> filter_logits(std::span<const float> logits, const SamplingParams& params,
                                        FilterScratch& scratch);

}  // namespace ddtree
