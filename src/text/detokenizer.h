// Ids to text as they arrive: each piece is whole UTF-8 characters, so it can be sent at once. All pieces together are
// the bytes of all ids decoded at once, with U+FFFD for what is not UTF-8.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace ddtree {

class Detokenizer {
 public:
  // The tokenizer must outlive this. `skip_special` leaves out the tokens for which Tokenizer::is_special() holds.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that `id` completes: empty while a character is not whole.
  std::string push(int32_t id);

  // The end of the ids: U+FFFD where they stop inside a character, else nothing. Leaves this ready for other ids.
  std::string finish();

  // Bytes of a character that is not whole yet: at most 3.
  size_t held_bytes() const { return held_.size(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;
};

}  // namespace ddtree
