#include "engine/divergence.h"

#include <algorithm>

namespace ddtree {

std::optional<Divergence> first_divergence(const DecodedText& plain, const DecodedText& other) {
  const size_t shared = std::min(plain.tokens.size(), other.tokens.size());
  for (size_t i = 0; i < shared; ++i) {
    const OutputToken &a = plain.tokens[i], &b = other.tokens[i];
    if (a.id != b.id || a.row_hash != b.row_hash) return Divergence{i, a.id, b.id, a.margin};
  }
  if (plain.tokens.size() == other.tokens.size() && plain.finish == other.finish) return std::nullopt;
  Divergence end{shared, -1, -1, 0};
  if (shared < plain.tokens.size()) end.expected = plain.tokens[shared].id, end.margin = plain.tokens[shared].margin;
  if (shared < other.tokens.size()) end.got = other.tokens[shared].id;
  return end;
}

}  // namespace ddtree
