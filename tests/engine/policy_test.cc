// Single decisions of the policy of `auto`, worked out by hand; policy_simulation_test.cc is about many.

#include "engine/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace ddtree {
namespace {

constexpr PolicyLoad kAlone = {0, 0, 1088};

// Costs that are known exactly: 1 ms a pass and `row` a row, drafting 1 ms.
StepPrior costs(double row) { return {1, row, 0, 0, 0, 1, 0, 1, 0, 0}; }

Tree chain(std::initializer_list<float> probabilities) {
  std::vector<float> log_prob;
  std::vector<int32_t> id;
  for (float p : probabilities) log_prob.push_back(std::log(p)), id.push_back(static_cast<int32_t>(id.size()));
  Tree tree;
  build_tree({static_cast<int>(id.size()), 1, log_prob.data(), id.data()}, 0, kMaxNodes, {}, tree);
  return tree;
}

PolicyLane lane(DraftMemory& memory, const Tree& tree) {
  PolicyLane out;
  out.memory = &memory;
  out.context = 100;
  out.max_depth = 8;
  out.drafts = true;
  out.tree = &tree;
  return out;
}

TEST(Policy, TakesAsManyNodesAsGiveMostTokensAMillisecond) {
  // (1 + Σp) / (1 + 1 + 0.5 rows): 0.40, 0.63, 0.77, 0.74, …: two nodes.
  Policy policy(costs(0.5));
  DraftMemory memory;
  const Tree tree = chain({0.9f, 0.9f, 0.2f, 0.2f});
  std::vector<PolicyLane> lanes = {lane(memory, tree)};
  policy.choose_nodes(lanes, kAlone);
  EXPECT_EQ(lanes[0].keep, 2);
}

TEST(Policy, LooksBehindACliff) {
  Policy policy(costs(0));
  for (int i = 0; i < 3; ++i) {  // a step after two rows, then nothing more
    for (int32_t rows : {1, 2, 3, 8}) {
      Tree tree = chain({0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f});
      trim(tree, rows - 1);
      const std::vector<LaneResult> results = {{&tree, nullptr}};
      std::vector<PolicyLane> lanes(1);
      lanes[0].tree = &tree;
      policy.choose_nodes(lanes, kAlone);
      policy.learn(lanes, results, kAlone, {rows <= 2 ? 2.0 : 3.0, 0, 0});
    }
  }
  DraftMemory memory;
  const Tree tree = chain({0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f});
  std::vector<PolicyLane> lanes = {lane(memory, tree)};
  policy.choose_nodes(lanes, kAlone);
  EXPECT_EQ(lanes[0].keep, 7);  // the third node alone would not pay
}

TEST(Policy, GivesNodesToTheStreamThatUsesThem) {
  Policy policy(costs(0.2));
  DraftMemory sure, unsure;
  const Tree good = chain({0.95f, 0.95f, 0.95f, 0.95f}), bad = chain({0.05f, 0.05f});
  std::vector<PolicyLane> lanes = {lane(unsure, bad), lane(sure, good)};
  policy.choose_nodes(lanes, kAlone);
  EXPECT_EQ(lanes[0].keep, 0);
  EXPECT_EQ(lanes[1].keep, 4);
}

TEST(Policy, KeepsToTheRowsThereAre) {
  Policy policy(costs(0.001));
  DraftMemory a, b;
  const Tree tree = chain({0.95f, 0.95f, 0.95f, 0.95f, 0.95f, 0.95f});
  std::vector<PolicyLane> lanes = {lane(a, tree), lane(b, tree)};
  policy.choose_nodes(lanes, {0, 0, 7});
  EXPECT_EQ(lanes[0].keep + lanes[1].keep, 5);  // and two roots
}

TEST(Policy, DoesNotDraftWhereRowsAreDear) {
  Policy policy(costs(10));
  DraftMemory memory;
  std::vector<PolicyLane> lanes(1);
  lanes[0].memory = &memory;
  lanes[0].max_depth = 8;
  policy.choose_drafts(lanes, kAlone);
  EXPECT_FALSE(lanes[0].drafts);
  EXPECT_EQ(memory.decision.reason, DraftReason::kLoses);
  EXPECT_GT(memory.decision.costs_ms, memory.decision.saves_ms);
  const std::string why = explain(memory.decision);
  EXPECT_THAT(why, testing::StartsWith("auto: off, because drafting costs "));
  EXPECT_THAT(why, testing::HasSubstr(" ms and is expected to save "));
}

TEST(Policy, DraftsWhereTheyAreCheapAndLeavesFixedModesAlone) {
  Policy policy(costs(0.001));
  DraftMemory memory;
  std::vector<PolicyLane> lanes(3);
  lanes[0].memory = &memory;
  lanes[0].max_depth = 8;
  lanes[1].max_depth = 8;  // off
  lanes[2].max_depth = 8;
  lanes[2].drafts = true;
  policy.choose_drafts(lanes, kAlone);
  EXPECT_TRUE(lanes[0].drafts);
  EXPECT_FALSE(lanes[1].drafts);
  EXPECT_TRUE(lanes[2].drafts);
  EXPECT_EQ(memory.decision.reason, DraftReason::kPays);
}

TEST(Policy, AStreamThatCannotDraftIsNotAsked) {
  Policy policy(costs(0.001));
  DraftMemory memory;
  std::vector<PolicyLane> lanes(1);
  lanes[0].memory = &memory;
  policy.choose_drafts(lanes, kAlone);
  EXPECT_FALSE(lanes[0].drafts);
  EXPECT_EQ(memory.decision.reason, DraftReason::kNone);
}

// The whole of probing is bounded by time, however long drafting does not pay.
TEST(Policy, ProbesWithinItsShareOfTime) {
  Policy policy(costs(4));
  DraftMemory memory;
  const Tree tree = chain({0.3f, 0.3f, 0.3f, 0.3f, 0.3f, 0.3f, 0.3f, 0.3f});
  const Tree root = root_tree(0);
  for (int step = 0; step < 20000; ++step) {
    std::vector<PolicyLane> lanes(1);
    lanes[0].memory = &memory;
    lanes[0].max_depth = 8;
    policy.choose_drafts(lanes, kAlone);
    Tree own = lanes[0].drafts ? tree : root;
    lanes[0].tree = &own;
    policy.choose_nodes(lanes, kAlone);
    trim(own, lanes[0].keep);
    const Accepted rejected;
    const std::vector<LaneResult> results = {{&own, &rejected}};
    policy.learn(lanes, results, kAlone, {1 + 4.0 * own.size(), lanes[0].drafts ? 1.0 : 0.0, 0});
  }
  EXPECT_GT(policy.totals().probes, 3);
  EXPECT_EQ(policy.totals().drafted, policy.totals().probes);
  EXPECT_LE(policy.totals().probe_ms, 0.01 * policy.totals().total_ms);
}

TEST(Policy, DoesNotFollowATextThatNothingCanPayFor) {
  StepPrior prior = costs(10);
  prior.observed_ms = 1;
  Policy policy(prior);
  DraftMemory memory;
  EXPECT_FALSE(policy.follow(1000, 16, 1, memory));
  EXPECT_EQ(memory.decision.reason, DraftReason::kBehind);
  EXPECT_TRUE(policy.follow(2, 16, 1, memory));  // within what a start may spend
  StepPrior cheap = costs(0.001);
  cheap.observed_ms = 0.001;
  EXPECT_TRUE(Policy(cheap).follow(1000, 256, 1, memory));
}

}  // namespace
}  // namespace ddtree
