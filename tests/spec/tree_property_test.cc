#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <random>
#include <set>

#include "reference_tree.h"
#include "spec/tree.h"

namespace ddtree {
namespace {

using testing::Candidates;
using testing::random_candidates;
using testing::rank_path;
using testing::tied_candidates;

struct Case {
  Candidates candidates;
  int budget;
  TreeOptions options;
  Tree tree;
};

Case arbitrary_case() {
  const int slots = *rc::gen::inRange(1, kMaxDepth + 1);
  const int k = *rc::gen::inRange(1, kMaxRanks + 1);
  std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
  const bool ties = *rc::gen::arbitrary<bool>();
  Case c = {ties ? tied_candidates(random, slots, k, *rc::gen::inRange(0, 40)) : random_candidates(random, slots, k, 2),
            *rc::gen::inRange(0, kMaxNodes + 1),
            {.chain_first = *rc::gen::arbitrary<bool>()},
            {}};
  build_tree(c.candidates.view(), 3, c.budget, c.options, c.tree);
  return c;
}

RC_GTEST_PROP(TreeProperty, FillsItsBudgetOrItsSpace, ()) {
  const Case c = arbitrary_case();
  double space = 0, level = 1;  // prefixes there are
  for (int s = 0; s < c.candidates.slots; ++s) space += level *= c.candidates.k;
  RC_ASSERT(c.tree.nodes() == static_cast<int>(std::min<double>(c.budget, space)));
  RC_ASSERT(validate(c.tree).ok());
}

RC_GTEST_PROP(TreeProperty, IsNested, ()) {
  const Case c = arbitrary_case();
  const int smaller = *rc::gen::inRange(0, c.budget + 1);
  Tree small;
  build_tree(c.candidates.view(), 3, smaller, c.options, small);
  for (int i = 0; i < small.size(); ++i) {
    RC_ASSERT(small.token[i] == c.tree.token[i]);
    RC_ASSERT(small.parent[i] == c.tree.parent[i]);
    RC_ASSERT(small.log_prob[i] == c.tree.log_prob[i]);
  }
  Tree cut = c.tree;
  trim(cut, smaller);
  for (int i = 0; i < small.size(); ++i) {
    RC_ASSERT(small.first_child[i] == cut.first_child[i]);
    RC_ASSERT(small.next_sibling[i] == cut.next_sibling[i]);
  }
}

RC_GTEST_PROP(TreeProperty, IsClosedUnderPrefixesAndBetterSiblings, ()) {
  const Case c = arbitrary_case();
  std::set<std::vector<int>> earlier = {{}};
  for (int i = 1; i < c.tree.size(); ++i) {
    std::vector<int> path = rank_path(c.tree, i);
    RC_ASSERT(earlier.insert(path).second);
    if (path.back() > 0) {
      --path.back();
      RC_ASSERT(earlier.contains(path));
    }
    path.pop_back();
    RC_ASSERT(earlier.contains(path));
  }
}

RC_GTEST_PROP(TreeProperty, AncestorWordsAreThePathToTheRoot, ()) {
  const Case c = arbitrary_case();
  std::vector<AncestorWords> words(c.tree.size());
  ancestor_words(c.tree, words);
  for (int i = 0; i < c.tree.size(); ++i) {
    std::set<int> path;
    for (int node = i; node >= 0; node = c.tree.parent[node]) path.insert(node);
    for (int j = 0; j < kMaxRows; ++j) RC_ASSERT((words[i][j / 64] >> (j % 64) & 1) == path.contains(j));
    RC_ASSERT(c.tree.depth[i] == static_cast<int>(path.size()) - 1);
  }
}

RC_GTEST_PROP(TreeProperty, LinksListTheChildren, ()) {
  const Case c = arbitrary_case();
  for (int node = 0; node < c.tree.size(); ++node) {
    std::vector<int> linked, actual;
    for (int child = c.tree.first_child[node]; child >= 0; child = c.tree.next_sibling[child]) linked.push_back(child);
    for (int i = 1; i < c.tree.size(); ++i)
      if (c.tree.parent[i] == node) actual.push_back(i);
    RC_ASSERT(linked == actual);
  }
}

// Of two trees of one size, the best-first one is expected to be accepted further.
RC_GTEST_PROP(TreeProperty, BestFirstExpectsAtLeastTheChainFirstTree, ()) {
  const Case c = arbitrary_case();
  const auto expected = [&](bool chain_first) {
    Tree tree;
    build_tree(c.candidates.view(), 3, c.budget, {.chain_first = chain_first}, tree);
    double sum = 0;
    for (int i = 1; i < tree.size(); ++i) sum += std::exp(tree.log_prob[i]);
    return sum;
  };
  RC_ASSERT(expected(false) >= expected(true) * (1 - 1e-12));
}

}  // namespace
}  // namespace ddtree
