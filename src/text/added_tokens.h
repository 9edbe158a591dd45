// Control tokens and other tokens beside the BPE ranks ("added_tokens_decoder" of tokenizer_config.json), with the ids
// that the file gives them. The 256 ids after the ranks are reserved: those without a name are "<|reserved_token_ID|>".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace ddtree {

class AddedTokens {
 public:
  // `config` is the root of tokenizer_config.json, `first_id` the number of BPE ranks. `vocab_size`, the rows of the
  // model's embedding, bounds the ids; 0 where it is not known, and then the reserved range ends at the last named id.
  static Result<AddedTokens> parse(JsonValue config, int32_t first_id, int32_t vocab_size);

  int32_t end_id() const { return first_id_ + static_cast<int32_t>(entries_.size()); }
  std::string_view text(int32_t id) const;  // empty where the id is no added token
  bool is_special(int32_t id) const;        // "special": true, or reserved without a name
  std::optional<int32_t> find(std::string_view text) const;

  struct Occurrence {
    size_t begin;
    size_t length;
    int32_t id;
  };
  // The leftmost added token in `text` at or after `from`; the longest one that starts there.
  std::optional<Occurrence> find_in(std::string_view text, size_t from) const;

 private:
  struct Entry {
    std::string text;
    bool special = false;
  };

  explicit AddedTokens(int32_t first_id) : first_id_(first_id) {}
  Status add(std::string_view id_text, JsonValue token, int32_t vocab_size);
  Status index(JsonValue config);
  const Entry* entry(int32_t id) const;
  int32_t longest_prefix(std::string_view text) const;

  int32_t first_id_;
  std::vector<Entry> entries_;  // at id - first_id_; an empty text where the file leaves a gap past the reserved range
  std::vector<int32_t> by_text_;  // ids in the order of their texts
  std::string first_bytes_;       // the distinct first bytes of the texts
};

}  // namespace ddtree
