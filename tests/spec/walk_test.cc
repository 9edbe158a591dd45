#include "spec/walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "reference_tree.h"

namespace ddtree {
namespace {

using ::testing::HasSubstr;
using testing::random_candidates;
using testing::tied_candidates;

// The walk by the dictionary of each node's children.
Accepted walk_by_map(const Tree& tree, const std::vector<int32_t>& sampled) {
  std::map<std::pair<int, int32_t>, int> child;
  for (int i = 1; i < tree.size(); ++i) child[{tree.parent[i], tree.token[i]}] = i;
  Accepted accepted;
  int node = 0;
  while (child.contains({node, sampled[node]})) {
    node = child[{node, sampled[node]}];
    accepted.path[accepted.length++] = static_cast<int16_t>(node);
  }
  accepted.next = sampled[node];
  return accepted;
}

Tree random_tree(std::mt19937& random) {
  const int slots = 1 + static_cast<int>(random() % kMaxDepth), k = 1 + static_cast<int>(random() % 12);
  Tree tree;
  build_tree(random_candidates(random, slots, k, 3).view(), 5, static_cast<int>(random() % 256),
             {.chain_first = random() % 2 == 0}, tree);
  return tree;
}

// What the target might say: mostly a child's token, so that walks get deep.
std::vector<int32_t> random_samples(std::mt19937& random, const Tree& tree) {
  std::vector<int32_t> sampled(tree.size(), -7);
  for (int i = 1; i < tree.size(); ++i)
    if (random() % 8 != 0) sampled[tree.parent[i]] = tree.token[i];
  for (int32_t& token : sampled)
    if (random() % 64 == 0) token = static_cast<int32_t>(random() % 4000);
  return sampled;
}

TEST(Walk, FollowsTheTargetsTokens) {
  std::mt19937 random(1);
  int64_t longest = 0;
  for (int round = 0; round < 3000; ++round) {
    const Tree tree = random_tree(random);
    const std::vector<int32_t> sampled = random_samples(random, tree);
    const Accepted expected = walk_by_map(tree, sampled);
    const Result<Accepted> actual = walk(links(tree), sampled);
    ASSERT_TRUE(actual.ok()) << actual.error().message;
    EXPECT_EQ(actual->length, expected.length);
    EXPECT_EQ(actual->path, expected.path);
    EXPECT_EQ(actual->next, expected.next);
    longest = std::max<int64_t>(longest, expected.length);
  }
  EXPECT_EQ(longest, kMaxDepth + 1);  // the generator reaches the deepest paths
}

TEST(Walk, ARootAloneCommitsItself) {
  const Result<Accepted> accepted = walk(links(root_tree(9)), std::vector<int32_t>{9});
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(accepted->length, 1);
  EXPECT_EQ(accepted->path[0], 0);
  EXPECT_EQ(accepted->next, 9);
}

TEST(Walk, AWrongTokenMakesNoChain) {
  // Node 2 is node 1's sibling: its token after node 1 must not be taken for a successor.
  Tree tree = root_tree(0);
  tree.rows = 3;
  tree.token = {0, 10, 11};
  tree.first_child = {1, -1, -1};
  tree.next_sibling = {-1, 2, -1};
  const Result<Accepted> accepted = walk(links(tree), std::vector<int32_t>{10, 11, 12});
  ASSERT_TRUE(accepted.ok());
  EXPECT_EQ(accepted->length, 2);
  EXPECT_EQ(accepted->next, 11);
}

struct Malformed {
  const char* name;
  std::vector<int16_t> first_child, next_sibling;
};

TEST(Walk, RefusesMalformedLinks) {
  const std::vector<int32_t> token = {0, 1, 2, 3};
  const std::vector<int32_t> sampled = {3, 3, 3, 3};  // visits all siblings, then descends
  const Malformed cases[] = {
      {"child is its parent", {0, -1, -1, -1}, {-1, -1, -1, -1}},
      {"child before its parent", {3, -1, -1, 1}, {-1, -1, -1, -1}},
      {"self-linked sibling", {1, -1, -1, -1}, {-1, 1, -1, -1}},
      {"cycle of siblings", {1, -1, -1, -1}, {-1, 2, 1, -1}},
      {"sibling back to the root", {1, -1, -1, -1}, {-1, 0, -1, -1}},
      {"child past the end", {4, -1, -1, -1}, {-1, -1, -1, -1}},
      {"sibling past the end", {1, -1, -1, -1}, {-1, 32767, -1, -1}},
      {"negative child", {-2, -1, -1, -1}, {-1, -1, -1, -1}},
      {"negative sibling", {1, -1, -1, -1}, {-1, -32768, -1, -1}},
  };
  for (const Malformed& c : cases) {
    const Result<Accepted> accepted = walk({token, c.first_child, c.next_sibling}, sampled);
    ASSERT_FALSE(accepted.ok()) << c.name;
    EXPECT_EQ(accepted.error().code, Code::kCorrupt) << c.name;
    EXPECT_THAT(accepted.error().message, HasSubstr("draft tree: row ")) << c.name;
  }
}

TEST(Walk, RefusesArraysOfUnequalLength) {
  const std::vector<int32_t> three(3), none;
  const std::vector<int16_t> links3(3, -1), links2(2, -1), links0;
  EXPECT_TRUE(walk({three, links3, links3}, three).ok());
  EXPECT_FALSE(walk({three, links2, links3}, three).ok());
  EXPECT_FALSE(walk({three, links3, links2}, three).ok());
  EXPECT_FALSE(walk({three, links3, links3}, none).ok());
  EXPECT_FALSE(walk({none, links0, links0}, none).ok());
  const std::vector<int32_t> many(kMaxRows + 1);
  const std::vector<int16_t> many_links(kMaxRows + 1, -1);
  EXPECT_FALSE(walk({many, many_links, many_links}, many).ok());
}

TEST(Walk, RefusesPathsDeeperThanAnyTree) {
  for (const int depth : {kMaxDepth, kMaxDepth + 1, kMaxNodes}) {
    const std::vector<int32_t> same(depth + 1, 4);
    std::vector<int16_t> child(depth + 1), sibling(depth + 1, -1);
    for (int i = 0; i <= depth; ++i) child[i] = static_cast<int16_t>(i < depth ? i + 1 : -1);
    const Result<Accepted> accepted = walk({same, child, sibling}, same);
    EXPECT_EQ(accepted.ok(), depth == kMaxDepth);
    EXPECT_TRUE(accepted.ok() || accepted.error().code == Code::kCorrupt);
  }
}

// Any damage to the links: an error, or a path that ascends along them to a row whose token was sampled.
TEST(Walk, IsBoundedWhateverTheLinks) {
  std::mt19937 random(2);
  int refused = 0;
  for (int round = 0; round < 20000; ++round) {
    Tree tree = random_tree(random);
    const std::vector<int32_t> sampled = random_samples(random, tree);
    for (int damage = static_cast<int>(random() % 8); damage >= 0; --damage) {
      auto& array = random() % 2 == 0 ? tree.first_child : tree.next_sibling;
      array[random() % tree.size()] =
          static_cast<int16_t>(random() % 2 == 0 ? random() % tree.size() : static_cast<uint32_t>(random()));
    }
    // Of exact size, so that AddressSanitizer sees an overrun.
    const auto exact = [&](const auto& array) { return std::vector(array.begin(), array.begin() + tree.size()); };
    const std::vector<int32_t> token = exact(tree.token);
    const std::vector<int16_t> first = exact(tree.first_child), next = exact(tree.next_sibling);
    const Result<Accepted> accepted = walk({token, first, next}, sampled);
    if (!accepted.ok()) {
      ++refused;
      EXPECT_EQ(accepted.error().code, Code::kCorrupt);
      continue;
    }
    ASSERT_GE(accepted->length, 1);
    ASSERT_LE(accepted->length, kMaxDepth + 1);
    EXPECT_EQ(accepted->path[0], 0);
    for (int i = 1; i < accepted->length; ++i) {
      ASSERT_GT(accepted->path[i], accepted->path[i - 1]);
      ASSERT_LT(accepted->path[i], tree.size());
      EXPECT_EQ(token[accepted->path[i]], sampled[accepted->path[i - 1]]);
    }
    EXPECT_EQ(accepted->next, sampled[accepted->path[accepted->length - 1]]);
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace ddtree
