// After verification: the path of a tree that the target's own tokens follow.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "spec/tree.h"

namespace ddtree {

// A tree as a walk reads it; one element per row. Links may come from a device: nothing is assumed of them.
struct TreeLinks {
  std::span<const int32_t> token;
  std::span<const int16_t> first_child;   // −1: none
  std::span<const int16_t> next_sibling;  // −1: none
};

TreeLinks links(const Tree& tree);

struct Accepted {
  std::array<int16_t, kMaxDepth + 1> path = {};  // rows, ascending, from the root (0)
  int length = 1;                                // rows in `path`: the tokens this step commits
  int32_t next = 0;                              // the target's token after the last of them: the next root
};

// The child of row `node` that holds `token`, or −1. kCorrupt for links that lead out of the tree or do not ascend.
Result<int> find_child(const TreeLinks& tree, int node, int32_t token);

// The target's token after row `node`; `path` holds the tokens of its drafted ancestors and its own, the root's left
// out.
using SampleRow = std::function<Result<int32_t>(int node, std::span<const int32_t> path)>;

// From the root on, samples and descends to the child that holds the sampled token, until there is none. Only rows on
// the path are sampled. Rows ascend along links, so it ends within size() steps; whatever does not is kCorrupt.
Result<Accepted> walk(const TreeLinks& tree, const SampleRow& sample);

// The same where every row's token is known: sampled[i] is the target's after row i.
Result<Accepted> walk(const TreeLinks& tree, std::span<const int32_t> sampled);

}  // namespace ddtree
