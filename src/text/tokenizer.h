// The tokenizer of a model directory: text to ids and back. Immutable once loaded, so one may serve many threads.
// Reads Kimi's files: tiktoken.model, tokenizer_config.json, and vocab_size of config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/splitter.h"

namespace ddtree {

class Tokenizer {
 public:
  static Result<Tokenizer> load(const std::string& dir);

  // The same from the bytes of tiktoken.model and tokenizer_config.json. `vocab_size`, the rows of the model's
  // embedding, may be 0 for unknown; `dir` is where messages say that the files are.
  static Result<Tokenizer> parse(std::string_view model_bytes, std::string_view config_bytes, int32_t vocab_size = 0,
                                 const std::string& dir = "");

  // Text of a message: whatever it says, no control token comes out. Text that is not UTF-8 is refused.
  Result<std::vector<int32_t>> encode(std::string_view text) const;

  // Text of a trusted template: added tokens are recognised, the leftmost first and the longest of those.
  Result<std::vector<int32_t>> encode_with_special(std::string_view text) const;

  // The bytes of the ids, which need not be valid UTF-8. An id without a token adds nothing. `skip_special` leaves out
  // the tokens for which is_special() holds.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Empty where the id has no token: negative, or padding at the end of the model's vocabulary.
  std::string_view token_bytes(int32_t id) const;

  // The id of an added token, special or not: "<|im_end|>", "<think>".
  std::optional<int32_t> special_id(std::string_view name) const { return added_.find(name); }

  // An added token that the file marks as special, or a reserved one. Kimi's <think> and tool markers are not special.
  bool is_special(int32_t id) const { return added_.is_special(id); }

  int32_t vocab_size() const { return vocab_size_; }
  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }

 private:
  Tokenizer(Bpe bpe, Splitter splitter, AddedTokens added)
      : bpe_(std::move(bpe)), splitter_(std::move(splitter)), added_(std::move(added)) {}

  Status encode_ordinary(std::string_view text, std::vector<int32_t>& ids) const;

  Bpe bpe_;
  Splitter splitter_;
  AddedTokens added_;
  int32_t vocab_size_ = 0;
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
};

}  // namespace ddtree
