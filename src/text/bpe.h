// Byte-pair encoding over a ranked vocabulary (tiktoken's scheme: the rank of a token is its id and its merge
// priority). Knows nothing of text: pieces come from Splitter, control tokens from AddedTokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddtree {

class Bpe {
 public:
  // Reads lines "base64(bytes) rank". The ranks must be 0 … n-1, in any order, without repeats; each of the 256 single
  // bytes must be a token. `name` begins the messages.
  static Result<Bpe> parse(std::string_view file, std::string_view name);

  int32_t size() const { return static_cast<int32_t>(begin_.size()) - 1; }
  std::string_view bytes(int32_t rank) const {
    return std::string_view(bytes_).substr(begin_[rank], begin_[rank + 1] - begin_[rank]);
  }

  // Appends the ids of one piece: the piece's own token if it is one, else the result of merging, again and again, the
  // adjacent pair that forms the token of lowest rank (the leftmost such pair).
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  static constexpr int32_t kNone = -1;

  Bpe() = default;
  Status index(std::string_view name, const std::vector<int64_t>& line_of_rank);
  int32_t find(std::string_view token) const;
  size_t slot(std::string_view token) const;
  void merge_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::string bytes_;            // all tokens, in rank order
  std::vector<uint32_t> begin_;  // where each starts in bytes_, and the end of the last one
  size_t longest_ = 0;
  std::vector<int32_t> table_;  // open addressing from hash of the bytes to rank; a power of two, at most half full
  std::array<int32_t, 256> byte_rank_{};
  std::vector<int32_t> pair_rank_;  // rank of the two-byte token, at first byte * 256 + second
};

}  // namespace ddtree
