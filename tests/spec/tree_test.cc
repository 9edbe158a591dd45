#include "spec/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "reference_tree.h"

namespace ddtree {
namespace {

using testing::best_prefixes;
using testing::Candidates;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::heap_tree;
using testing::Node;
using testing::random_candidates;
using testing::rank_path;
using testing::rounding_candidates;
using testing::tied_candidates;

constexpr int32_t kRoot = 77;

Tree build(const Candidates& c, int budget, const TreeOptions& options = {}) {
  Tree tree;
  build_tree(c.view(), kRoot, budget, options, tree);
  return tree;
}

// Same nodes in the same order, and every array says so.
void expect_same(const Tree& tree, const std::vector<Node>& nodes, const Candidates& c) {
  ASSERT_EQ(tree.size(), static_cast<int>(nodes.size()));
  EXPECT_EQ(tree.token[0], kRoot);
  for (int i = 1; i < tree.size(); ++i) {
    ASSERT_EQ(rank_path(tree, i), nodes[i].ranks) << "node " << i;
    EXPECT_EQ(tree.depth[i], nodes[i].depth());
    EXPECT_EQ(tree.token[i], c.id[(nodes[i].depth() - 1) * c.k + nodes[i].ranks.back()]);
    EXPECT_EQ(tree.log_prob[i], nodes[i].log_prob);
  }
  const Status status = validate(tree);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

void expect_same_with_parents(const Tree& tree, const std::vector<Node>& nodes, const Candidates& c) {
  expect_same(tree, nodes, c);
  for (int i = 0; i < tree.size(); ++i) EXPECT_EQ(tree.parent[i], nodes[i].parent) << "node " << i;
}

TEST(Tree, StartsAsARoot) {
  for (const Tree& tree : {Tree{}, root_tree(0)}) {
    EXPECT_EQ(tree.size(), 1);
    EXPECT_EQ(tree.nodes(), 0);
    EXPECT_TRUE(validate(tree).ok());
  }
  EXPECT_EQ(root_tree(5).token[0], 5);
}

TEST(Tree, WorkedExample) {
  // Two slots of two candidates: 0.5, 0.25 and 0.75, 0.125. Prefixes by probability: 0 (.5), 00 (.375), 1 (.25),
  // 10 (.1875), 01 (.0625), 11 (.03125).
  Candidates c(2, 2);
  c.log_prob = {std::log(0.5f), std::log(0.25f), std::log(0.75f), std::log(0.125f)};
  c.id = {10, 11, 20, 21};
  const Tree tree = build(c, 6);
  ASSERT_EQ(tree.size(), 7);
  const auto row = [&](const auto& array) { return std::vector<int>(array.begin(), array.begin() + tree.size()); };
  EXPECT_THAT(row(tree.token), ElementsAre(kRoot, 10, 20, 11, 20, 21, 21));
  EXPECT_THAT(row(tree.parent), ElementsAre(-1, 0, 1, 0, 3, 1, 3));
  EXPECT_THAT(row(tree.depth), ElementsAre(0, 1, 2, 1, 2, 2, 2));
  EXPECT_THAT(row(tree.rank), ElementsAre(0, 0, 0, 1, 0, 1, 1));
  EXPECT_THAT(row(tree.first_child), ElementsAre(1, 2, -1, 4, -1, -1, -1));
  EXPECT_THAT(row(tree.next_sibling), ElementsAre(-1, 3, 5, -1, 6, -1, -1));
  EXPECT_EQ(tree.log_prob[4], double{c.lp(0, 1)} + c.lp(1, 0));

  std::vector<AncestorWords> words(7);
  ancestor_words(tree, words);
  std::vector<uint64_t> low;
  for (const AncestorWords& w : words) low.push_back(w[0]);
  EXPECT_THAT(low, ElementsAre(0b1, 0b11, 0b111, 0b1001, 0b11001, 0b100011, 0b1001001));
}

TEST(Tree, NothingToDraftIsARoot) {
  std::mt19937 random(1);
  Tree tree = build(random_candidates(random, 3, 4, 1), 20);
  for (const auto& [slots, k, budget, depth] : std::vector<std::array<int, 4>>{
           {3, 4, 0, 16}, {3, 4, -1, 16}, {0, 4, 9, 16}, {3, 0, 9, 16}, {0, 0, 0, 0}, {3, 4, 9, 0}, {3, 4, 9, -2}}) {
    const Candidates c = k > 0 && slots > 0 ? random_candidates(random, slots, k, 1) : Candidates(slots, k);
    build_tree(c.view(), 5, budget, {.max_depth = depth}, tree);
    EXPECT_EQ(tree.size(), 1);
    EXPECT_EQ(tree.token[0], 5);
    EXPECT_EQ(tree.first_child[0], -1);
  }
}

TEST(Tree, EqualsThePublishedHeapAtAllExtremes) {
  std::mt19937 random(2);
  for (const int slots : {1, 2, 7, 15, 16})
    for (const int k : {1, 2, 31, 32, 33, 63, 64})
      for (const int budget : {0, 1, 2, 8, 31, 32, 33, 63, 64, 65, 127, 128, 129, 254, 255}) {
        SCOPED_TRACE(::testing::Message() << slots << " slots, " << k << " candidates, budget " << budget);
        const Candidates c = random_candidates(random, slots, k, 1.0f + static_cast<float>(random() % 4));
        expect_same_with_parents(build(c, budget), heap_tree(c, budget), c);
        expect_same_with_parents(build(c, budget, {.chain_first = true}), heap_tree(c, budget, true), c);
      }
}

TEST(Tree, EqualsThePublishedHeapUnderTies) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const int slots = 1 + static_cast<int>(random() % 16), k = 1 + static_cast<int>(random() % 64);
    const int budget = static_cast<int>(random() % 256);
    SCOPED_TRACE(::testing::Message() << slots << " slots, " << k << " candidates, budget " << budget);
    const Candidates c = tied_candidates(random, slots, k, static_cast<int>(random() % 20));
    expect_same_with_parents(build(c, budget), heap_tree(c, budget), c);
    expect_same_with_parents(build(c, budget, {.chain_first = true}), heap_tree(c, budget, true), c);
  }
}

TEST(Tree, AddsUpInThePublishedOrder) {
  std::mt19937 random(14);
  int prefix_sums_differ = 0;
  for (int round = 0; round < 200; ++round) {
    const Candidates c = rounding_candidates(random, 1 + static_cast<int>(random() % 16), 8);
    const Tree tree = build(c, 255);
    expect_same_with_parents(tree, heap_tree(c, 255), c);
    expect_same_with_parents(build(c, 255, {.chain_first = true}), heap_tree(c, 255, true), c);
    for (int i = 1; i < tree.size(); ++i)
      prefix_sums_differ +=
          tree.log_prob[i] != tree.log_prob[tree.parent[i]] + double{c.lp(tree.depth[i] - 1, tree.rank[i])};
  }
  EXPECT_GT(prefix_sums_differ, 50);  // so the order matters here
}

TEST(Tree, IsTheBestPrefixesByDefinition) {
  std::mt19937 random(4);
  for (int round = 0; round < 600; ++round) {
    const int slots = 1 + static_cast<int>(random() % 5), k = 1 + static_cast<int>(random() % 4);
    const int budget = static_cast<int>(random() % 256);
    const Candidates c = tied_candidates(random, slots, k, 1 + static_cast<int>(random() % 300));
    expect_same(build(c, budget), best_prefixes(c, budget), c);
  }
}

TEST(Tree, ChainFirstIsTheChainThenTheBestOthers) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    const int slots = 1 + static_cast<int>(random() % 5), k = 1 + static_cast<int>(random() % 4);
    const int budget = static_cast<int>(random() % 40);
    const Candidates c = tied_candidates(random, slots, k, 1 + static_cast<int>(random() % 100));
    std::vector<Node> expected = best_prefixes(c, kMaxNodes * 8);
    std::stable_sort(expected.begin() + 1, expected.end(), [](const Node& a, const Node& b) {
      const auto on_chain = [](const Node& n) { return std::ranges::count(n.ranks, 0) == n.depth(); };
      if (on_chain(a) != on_chain(b)) return on_chain(a);
      return on_chain(a) && a.depth() < b.depth();
    });
    expected.resize(std::min<size_t>(expected.size(), budget + 1));
    expect_same(build(c, budget, {.chain_first = true}), expected, c);
  }
}

TEST(Tree, EqualLogitsGoByRankPath) {
  // All prefixes of a depth tie; a deeper one is less probable.
  Candidates c(3, 3);
  std::ranges::fill(c.log_prob, -2.0f);
  const Tree tree = build(c, 3 + 9 + 27);
  std::vector<std::vector<int>> paths;
  for (int i = 1; i < tree.size(); ++i) paths.push_back(rank_path(tree, i));
  std::vector<std::vector<int>> expected;
  for (int depth = 1; depth <= 3; ++depth)
    for (int n = 0; n < std::pow(3, depth); ++n) {
      std::vector<int> path;
      for (int d = depth - 1; d >= 0; --d) path.push_back(n / static_cast<int>(std::pow(3, d)) % 3);
      expected.push_back(path);
    }
  EXPECT_EQ(paths, expected);
}

TEST(Tree, CertainTokensFormTheChainFirst) {
  // A probability of 1 makes children tie with their parents: the prefix comes first, then its extensions.
  Candidates c(15, 2);
  for (int s = 0; s < 15; ++s) c.log_prob[2 * s] = 0.0f, c.log_prob[2 * s + 1] = -103.0f;
  const Tree tree = build(c, 20);
  for (int i = 1; i <= 15; ++i) EXPECT_EQ(rank_path(tree, i), std::vector<int>(i, 0));
  for (int i = 16; i <= 20; ++i) EXPECT_EQ(tree.log_prob[i], -103.0) << i;
  std::vector<int> deepest(15, 0);  // of the fifteen that tie at −103, the first by rank path
  deepest.back() = 1;
  EXPECT_EQ(rank_path(tree, 16), deepest);
}

TEST(Tree, MaxDepthCutsTheSlots) {
  std::mt19937 random(6);
  const Candidates c = random_candidates(random, 16, 8, 2);
  for (const int depth : {1, 2, 7, 15, 16, 99}) {
    Candidates cut = c;
    cut.slots = std::min(depth, 16);
    expect_same_with_parents(build(c, 100, {.max_depth = depth}), heap_tree(cut, 100), c);
  }
}

TEST(Tree, WithoutSiblingsItIsTheChain) {
  std::mt19937 random(7);
  for (const bool chain_first : {false, true}) {
    const Candidates c = random_candidates(random, 15, 1, 2);
    const Tree tree = build(c, 255, {.chain_first = chain_first});
    ASSERT_EQ(tree.size(), 16);
    for (int i = 1; i < 16; ++i) EXPECT_EQ(tree.parent[i], i - 1);
  }
}

TEST(Tree, ImpossibleCandidatesAreNoNodes) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {-kInf, kNan}) {
    Candidates c(2, 3);
    c.log_prob = {-1.0f, bad, bad, -0.5f, -1.5f, bad};
    const Tree tree = build(c, 255);
    ASSERT_EQ(tree.size(), 4);  // 0, 00, 01
    EXPECT_TRUE(validate(tree).ok());
    EXPECT_EQ(tree.log_prob[3], -2.5);
    c.log_prob[0] = bad;
    EXPECT_EQ(build(c, 255).size(), 1);
    EXPECT_EQ(build(c, 255, {.chain_first = true}).size(), 1);
  }
}

TEST(Tree, AnyFloatsGiveATree) {
  std::mt19937 random(8);
  for (int round = 0; round < 2000; ++round) {
    Candidates c(1 + static_cast<int>(random() % 16), 1 + static_cast<int>(random() % 64));
    for (float& lp : c.log_prob) lp = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (round % 2 == 0) {  // only the hostile ones
      const float some[] = {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::max(),
                            std::numeric_limits<float>::lowest(),
                            0.0f,
                            -0.0f,
                            -1.0f};
      for (float& lp : c.log_prob) lp = some[random() % 8];
    }
    const Tree tree = build(c, static_cast<int>(random() % 256), {.chain_first = random() % 2 == 0});
    const Status status = validate(tree);
    ASSERT_TRUE(status.ok()) << status.error().message;
  }
}

TEST(Tree, RebuildingLeavesNothingBehind) {
  std::mt19937 random(9);
  Tree reused;
  for (int round = 0; round < 100; ++round) {
    const int budget = static_cast<int>(random() % 256);
    const Candidates c = random_candidates(random, 1 + static_cast<int>(random() % 16), 8, 2);
    build_tree(c.view(), kRoot, budget, {}, reused);
    expect_same_with_parents(reused, heap_tree(c, budget), c);
  }
}

TEST(Tree, TrimGivesTheSmallerTree) {
  std::mt19937 random(10);
  for (const bool chain_first : {false, true}) {
    const Candidates c = tied_candidates(random, 15, 16, 30);
    const Tree full = build(c, 255, {.chain_first = chain_first});
    for (int n = 0; n <= 255; ++n) {
      Tree cut = full;
      trim(cut, n);
      expect_same_with_parents(cut, heap_tree(c, n, chain_first), c);
    }
    Tree same = full;
    trim(same, 1000);
    EXPECT_EQ(same.size(), 256);
  }
}

TEST(TrimToRows, KeepsEverythingThatFits) {
  std::mt19937 random(11);
  const Tree a = build(random_candidates(random, 7, 8, 2), 20), b = root_tree(1);
  const std::vector<const Tree*> trees = {&a, &b};
  EXPECT_THAT(trim_to_rows(trees, 22), ElementsAre(20, 0));
  EXPECT_THAT(trim_to_rows(trees, 21), ElementsAre(19, 0));
  EXPECT_THAT(trim_to_rows(trees, 2), ElementsAre(0, 0));
  EXPECT_THAT(trim_to_rows(trees, 0), ElementsAre(0, 0));  // roots stay
  EXPECT_TRUE(trim_to_rows({}, 8).empty());
}

TEST(TrimToRows, EqualsTheSortOfAllNodes) {
  std::mt19937 random(12);
  for (int round = 0; round < 300; ++round) {
    const int streams = 1 + static_cast<int>(random() % 20);
    std::vector<Tree> trees;
    for (int t = 0; t < streams; ++t) {
      const int slots = 1 + static_cast<int>(random() % 15), k = 1 + static_cast<int>(random() % 16);
      const Candidates c = round % 2 ? random_candidates(random, slots, k, 2) : tied_candidates(random, slots, k, 12);
      trees.push_back(build(c, static_cast<int>(random() % 256), {.chain_first = round % 3 == 0}));
    }
    std::vector<std::tuple<double, int, int>> all;  // minus the lowest log-probability so far, tree, node
    std::vector<const Tree*> pointers;
    for (int t = 0; t < streams; ++t) {
      pointers.push_back(&trees[t]);
      double lowest = 0;
      for (int i = 1; i < trees[t].size(); ++i) {
        lowest = std::min(lowest, trees[t].log_prob[i]);
        all.emplace_back(-lowest, t, i);
      }
    }
    std::sort(all.begin(), all.end());
    const int max_rows = streams + static_cast<int>(random() % (all.size() + 10));
    std::vector<int> expected(streams, 0);
    for (int i = 0; i < std::min<int>(max_rows - streams, static_cast<int>(all.size())); ++i)
      ++expected[std::get<1>(all[i])];
    EXPECT_EQ(trim_to_rows(pointers, max_rows), expected);
  }
}

TEST(Validate, NamesEachFault) {
  std::mt19937 random(13);
  const Tree good = build(random_candidates(random, 7, 8, 2), 40);
  ASSERT_TRUE(validate(good).ok());
  const auto fault = [&](auto&& damage) {
    Tree tree = good;
    damage(tree);
    const Status status = validate(tree);
    return status.ok() ? std::string("none") : status.error().message;
  };
  EXPECT_THAT(fault([](Tree& t) { t.rows = 0; }), HasSubstr("0 rows"));
  EXPECT_THAT(fault([](Tree& t) { t.rows = 257; }), HasSubstr("257 rows"));
  EXPECT_THAT(fault([](Tree& t) { t.parent[0] = 0; }), HasSubstr("not a root"));
  EXPECT_THAT(fault([](Tree& t) { t.depth[0] = 1; }), HasSubstr("not a root"));
  EXPECT_THAT(fault([](Tree& t) { t.parent[9] = 9; }), HasSubstr("node 9: its parent 9"));
  EXPECT_THAT(fault([](Tree& t) { t.parent[9] = -1; }), HasSubstr("node 9: its parent -1"));
  EXPECT_THAT(fault([](Tree& t) { t.depth[9] += 1; }), HasSubstr("node 9: depth"));
  EXPECT_THAT(fault([](Tree& t) { t.rank[9] += 1; }), HasSubstr("node 9: rank"));
  EXPECT_THAT(fault([](Tree& t) { t.first_child[0] = -1; }), HasSubstr("node 0: its links"));
  EXPECT_THAT(fault([](Tree& t) { t.next_sibling[40] = 40; }), HasSubstr("node 40: its links"));
  EXPECT_THAT(fault([](Tree& t) { t.log_prob[9] = std::nan(""); }), HasSubstr("node 9: no log-prob"));
  EXPECT_THAT(fault([](Tree& t) { t.token[t.next_sibling[1]] = t.token[1]; }), HasSubstr("a sibling has its token"));
}

}  // namespace
}  // namespace ddtree
