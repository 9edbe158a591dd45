// A vocabulary for scripts.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace ddtree {

inline constexpr int32_t kByteVocab = 1024;

// The 256 bytes, and the control tokens of all families of templates. <|im_end|> ends a text.
const Tokenizer& byte_tokenizer();
std::vector<int32_t> script_ids(std::string_view text);  // control tokens are read
int32_t end_id();

}  // namespace ddtree
