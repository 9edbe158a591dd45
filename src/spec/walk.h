// After verification: the path of a tree that the target's own tokens follow.
#pragma once

#include <array>
#include <cstdint>
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

// sampled[i] is the target's token after row i. From the root on, descends to the child that holds the sampled token
// until there is none. Rows ascend along links, so it ends within size() steps; whatever does not is kCorrupt.
Result<Accepted> walk(const TreeLinks& tree, std::span<const int32_t> sampled);

}  // namespace ddtree
