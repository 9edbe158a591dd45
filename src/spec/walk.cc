#include "spec/walk.h"

#include <cstddef>
#include <string>

#include "base/check.h"

namespace ddtree {

TreeLinks links(const Tree& tree) {
  const size_t n = static_cast<size_t>(tree.size());
  return {std::span(tree.token).first(n), std::span(tree.first_child).first(n), std::span(tree.next_sibling).first(n)};
}

Result<int> find_child(const TreeLinks& tree, int node, int32_t token) {
  const int rows = static_cast<int>(tree.token.size());
  CHECK(node >= 0 && node < rows);
  int previous = node;
  for (int child = tree.first_child[node]; child != -1; child = tree.next_sibling[child]) {
    if (child <= previous || child >= rows)
      return Error{Code::kCorrupt, "draft tree: row " + std::to_string(previous) + " links to row " +
                                       std::to_string(child) + "; links ascend and end below " + std::to_string(rows)};
    if (tree.token[child] == token) return child;
    previous = child;
  }
  return -1;
}

Result<Accepted> walk(const TreeLinks& tree, const SampleRow& sample) {
  const size_t rows = tree.token.size();
  if (rows < 1 || rows > kMaxRows || tree.first_child.size() != rows || tree.next_sibling.size() != rows)
    return Error{Code::kCorrupt, "draft tree: " + std::to_string(rows) + " tokens, " +
                                     std::to_string(tree.first_child.size()) + " and " +
                                     std::to_string(tree.next_sibling.size()) + " links; all must be equal, 1 to " +
                                     std::to_string(kMaxRows)};
  Accepted accepted;
  std::array<int32_t, kMaxDepth> path;
  int node = 0;
  while (true) {
    TRY_ASSIGN(accepted.next, sample(node, std::span(path).first(accepted.length - 1)));
    TRY_ASSIGN(const int child, find_child(tree, node, accepted.next));
    if (child < 0) return accepted;
    if (accepted.length > kMaxDepth)
      return Error{Code::kCorrupt, "draft tree: a path of more than " + std::to_string(kMaxDepth) + " nodes"};
    path[accepted.length - 1] = accepted.next;
    accepted.path[accepted.length++] = static_cast<int16_t>(child);
    node = child;
  }
}

Result<Accepted> walk(const TreeLinks& tree, std::span<const int32_t> sampled) {
  if (sampled.size() != tree.token.size())
    return Error{Code::kCorrupt, "draft tree: " + std::to_string(sampled.size()) + " sampled tokens for " +
                                     std::to_string(tree.token.size()) + " rows"};
  return walk(tree, [&](int node, std::span<const int32_t>) -> Result<int32_t> { return sampled[node]; });
}

}  // namespace ddtree
