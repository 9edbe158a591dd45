// Draft trees, as plain data. A tree is built best-first: its nodes are the most probable prefixes of the drafter's
// factorised distribution, in the order in which the search pops them. So trees are nested (the tree of n nodes is the
// first n nodes of any larger one), a parent precedes its children, and siblings follow each other by rank.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace ddtree {

inline constexpr int kMaxNodes = 255;  // drafted nodes of a tree; the root comes on top
inline constexpr int kMaxRows = kMaxNodes + 1;
inline constexpr int kMaxDepth = 16;  // slots a drafter may fill
inline constexpr int kMaxRanks = 64;  // candidates per slot

inline constexpr int kAncestorWords = kMaxRows / 64;
using AncestorWords = std::array<uint64_t, kAncestorWords>;  // bit i: row i of the own tree

// What a drafter proposes for one stream: per slot its k most probable tokens, most probable first, with their float32
// log-softmax at temperature 1 over the whole vocabulary.
struct CandidateView {
  int slots = 0;                    // at most kMaxDepth
  int k = 0;                        // at most kMaxRanks
  const float* log_prob = nullptr;  // [slots][k]
  const int32_t* id = nullptr;      // [slots][k], distinct within a slot
};

struct TreeOptions {
  bool chain_first = false;   // begin with the chain of the top candidates, then search best-first
  int max_depth = kMaxDepth;  // use at most this many slots
};

// Structure of arrays; row 0 is the root, and rows from size() on mean nothing. Rank is the rank among the parent's
// children. Copies and rebuilds never allocate.
struct Tree {
  std::array<int32_t, kMaxRows> token = {};
  std::array<int16_t, kMaxRows> parent = {-1};  // −1: none
  std::array<int16_t, kMaxRows> depth = {};
  std::array<int16_t, kMaxRows> rank = {};
  std::array<int16_t, kMaxRows> first_child = {-1};   // −1: none
  std::array<int16_t, kMaxRows> next_sibling = {-1};  // −1: none; siblings ascend
  std::array<double, kMaxRows> log_prob = {};         // of the path from the root, in the order the search adds it up
  int rows = 1;

  int size() const { return rows; }       // the root and its nodes
  int nodes() const { return rows - 1; }  // what a budget counts
};

// Rebuilds `out` as the best-first tree of at most `budget` nodes (0 … kMaxNodes; below 0 is 0). Equal
// log-probabilities are ordered by rank path, lexicographically. A candidate of log-probability −inf or NaN is never a
// node, and neither are the candidates after it in its slot's order: such a path cannot come up, and has no place in
// the order.
void build_tree(const CandidateView& candidates, int32_t root_token, int budget, const TreeOptions& options, Tree& out);

Tree root_tree(int32_t root_token);

// Keeps the first `nodes` nodes. The result is the tree a budget of `nodes` would have given.
void trim(Tree& tree, int nodes);

// For each row, the rows it may attend to: its ancestors, the root included, and itself. `out` has size() elements.
void ancestor_words(const Tree& tree, std::span<AncestorWords> out);

// How many nodes each tree may keep so that all roots and nodes fill at most `max_rows` rows: the best of all trees by
// log-probability, each tree's in its own order so that it stays nested; ties go to the lower tree. Roots are never
// dropped. Where a tree's order does not descend (chain first), a node counts as the least probable one up to it.
std::vector<int> trim_to_rows(std::span<const Tree* const> trees, int max_rows);

// Whether the arrays describe a tree as built above. The oracle's side of a device's tree builder: its trees must pass
// this as well as equal build_tree's.
Status validate(const Tree& tree);

}  // namespace ddtree
