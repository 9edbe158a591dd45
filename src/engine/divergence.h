// Whether two decodings of one request are the same: tokens, how they ended, and the logits behind every token, bit for
// bit.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/request.h"

namespace ddtree {

struct DecodedText {
  std::vector<OutputToken> tokens;
  FinishReason finish = FinishReason::kNone;
};

struct Divergence {
  size_t token = 0;       // the first that differs; both lengths if only the end does
  int32_t expected = -1;  // −1: the text had ended
  int32_t got = -1;
  float margin = 0;  // of the expected token's row: top-1 minus top-2 logit
};

// Nothing if `other` equals `plain`. The same token from logits with other bits is a divergence too: the next one might
// differ.
std::optional<Divergence> first_divergence(const DecodedText& plain, const DecodedText& other);

}  // namespace ddtree
