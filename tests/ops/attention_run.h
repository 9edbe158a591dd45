// AttentionRun: segments described by what their keys and queries are, placed at random in a paged cache and run
// through Backend::attend. Two runs with the same contents must agree however they are placed.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "bounded.h"
#include "random.h"

namespace ddtree::ops {

struct AttentionKind {
  std::string name;
  int32_t heads, kv_heads, qk_dim, v_dim;
  bool latent;  // MLA: the value is the beginning of the key
  int64_t width() const { return latent ? qk_dim : static_cast<int64_t>(kv_heads) * (qk_dim + v_dim); }
};
extern const AttentionKind kDemoLatent, kOddLatent, kTinyLatent, kDemoGrouped, kOddGrouped, kTinyGrouped;

// Contents by number: the same number is the same vector everywhere. Key kNan is all NaN.
inline constexpr uint64_t kNan = ~uint64_t{0};
std::vector<float> key_values(const AttentionKind& kind, uint64_t key);
std::vector<float> query_values(const AttentionKind& kind, uint64_t query);

struct AttentionRow {
  uint64_t query, key;
  int32_t parent;  // row of the segment that comes before this one; −1: none. A chunk is a chain.
};
struct AttentionSegment {
  std::vector<uint64_t> context;  // keys at positions 0 …
  std::vector<AttentionRow> rows;
  bool tree = true;

  int32_t depth(int32_t row) const;
  int32_t position(int32_t row) const { return static_cast<int32_t>(context.size()) + depth(row); }
  bool sees(int32_t row, int32_t other) const;  // by walking up from `row`
};

// Segments whose contents come from `seed`.
AttentionSegment chunk(uint64_t seed, int32_t context, int32_t rows);
AttentionSegment random_tree(uint64_t seed, int32_t context, int32_t rows);

struct Question {  // what attend() is asked, besides the segments
  AttentionKind kind;
  AttendSpec::Mask mask = AttendSpec::Mask::kTree;
  int32_t window = 0;
  AttendSpec spec() const;
};

// [rows of all segments, heads · v_dim], in the segments' order. `layout` places pages and scratch rows; where it is
// odd, chunks write straight into their pages, as prefill does.
std::vector<float> run_attention(Backend& backend, const Question& question,
                                 const std::vector<AttentionSegment>& segments, uint64_t layout);
// Questions of one kind, asked one after the other of one staged batch.
std::vector<std::vector<float>> run_attentions(Backend& backend, const std::vector<Question>& questions,
                                               const std::vector<AttentionSegment>& segments, uint64_t layout);

// The same for one row, from the definition.
BoundedVector expected_attention(const Question& question, const AttentionSegment& segment, int32_t row);

}  // namespace ddtree::ops
