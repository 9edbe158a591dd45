#include "text/detokenizer.h"

#include <utility>

#include "base/utf8.h"

namespace ddtree {

std::string Detokenizer::push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(id)) return text;
  held_ += tokenizer_->token_bytes(id);
  held_.erase(0, repair_utf8(held_, text));
  return text;
}

std::string Detokenizer::finish() {
  return std::exchange(held_, {}).empty() ? std::string() : std::string(kReplacementCharacter);
}

}  // namespace ddtree
