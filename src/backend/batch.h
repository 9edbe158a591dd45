// Batch: the rows of one forward pass over all streams, as structure of arrays; all that a backend learns about
// requests. A segment is one stream's rows: a causal chunk of prompt, or a tree (plain decoding is a tree of its root
// alone), or a drafter's block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/tree.h"

namespace ddtree {

inline constexpr int kPageRows = 64;  // KV rows per page; key j of a stream sits in slot j mod 64 of its page j / 64

struct Segment {
  int32_t stream = 0;     // slot of the stream
  int32_t first_row = 0;  // rows [first_row, first_row + rows) of the batch
  int32_t rows = 0;
  int32_t context = 0;  // committed keys, positions 0 … context − 1, read through `pages`
  bool tree = false;    // true: Batch::ancestors says which of the segment's rows a row sees; false: those up to itself
  std::span<const int32_t> pages;  // page ids of the stream; at least ceil(context / 64)
};

struct Batch {
  std::vector<int32_t> token;     // [rows]
  std::vector<int32_t> position;  // [rows] committed length + depth for tree rows
  std::vector<int32_t> kv_row;    // [rows] physical row of the cache that receives this row's keys and values
  std::vector<AncestorWords>
      ancestors;  // [rows], bit i = row first_row + i of the own segment, own bit set; unused for chunks
  std::vector<Segment> segments;
  std::vector<int32_t> head_row;  // rows whose logits are wanted

  int32_t rows() const { return static_cast<int32_t>(token.size()); }
};

}  // namespace ddtree
