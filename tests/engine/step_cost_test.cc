#include "engine/step_cost.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ddtree {
namespace {

StepPrior linear() { return {1, 1, 0, 0, 0, 1, 0, 2, 1, 0.1}; }

// A million simulated rows, each choosing 8 of 384 experts, touched 109.8 of them at 16 rows (reference: the formula's
// own table in the literature on MoE decoding, uniform routing).
TEST(ExpectedExperts, GrowsAsIndependentChoicesDo) {
  EXPECT_EQ(expected_experts(0, 0, 1, 5), 0);
  EXPECT_NEAR(expected_experts(384, 8, 1, 1), 8, 1e-9);
  EXPECT_NEAR(expected_experts(384, 8, 1, 2), 15.8, 0.05);
  EXPECT_NEAR(expected_experts(384, 8, 1, 16), 109.8, 0.1);
  EXPECT_NEAR(expected_experts(384, 8, 1, 1024), 384, 0.1);
  EXPECT_NEAR(expected_experts(384, 8, 0.6, 16), 8 + 0.6 * 101.8, 0.1);  // rows that choose alike
}

TEST(StepCostModel, BeginsWithThePrior) {
  const StepCostModel cost(linear());
  EXPECT_DOUBLE_EQ(cost.target_ms(1, 0), 2);
  EXPECT_DOUBLE_EQ(cost.target_ms(200, 0), 201);
  EXPECT_DOUBLE_EQ(cost.propose_ms(3), 5);
  EXPECT_DOUBLE_EQ(cost.propose_ms(0), 0);
  EXPECT_DOUBLE_EQ(cost.observe_ms(1024), 102.4);  // in chunks
  EXPECT_FALSE(cost.measured());
}

TEST(StepCostModel, WhatWasNotMeasuredFollowsThePriorAtTheMeasuredPace) {
  StepCostModel cost(linear());
  for (int i = 0; i < 3; ++i) cost.add_target(1, 0, 0.5);  // a quarter of what was thought
  EXPECT_DOUBLE_EQ(cost.target_ms(1, 0), 0.5);
  EXPECT_DOUBLE_EQ(cost.target_ms(9, 0), 2.5);
  EXPECT_DOUBLE_EQ(cost.propose_ms(3), 1.25);              // of drafting too, until it is measured itself
  for (int i = 0; i < 3; ++i) cost.add_target(9, 0, 4.5);  // half a millisecond a row
  EXPECT_DOUBLE_EQ(cost.target_ms(1, 0), 0.5);
  EXPECT_DOUBLE_EQ(cost.target_ms(5, 0), 2.5);
  EXPECT_DOUBLE_EQ(cost.target_ms(29, 0), 14.5);
  cost.add_draft(3, 0, 7);
  EXPECT_DOUBLE_EQ(cost.propose_ms(3), 7);
}

TEST(StepCostModel, ACliffStaysWhereItWasMeasured) {
  StepCostModel cost(linear());
  for (int i = 0; i < 5; ++i)
    for (int32_t rows : {1, 8, 9, 16}) cost.add_target(rows, 0, rows <= 8 ? 10 : 17);
  EXPECT_DOUBLE_EQ(cost.target_ms(8, 0), 10);
  EXPECT_DOUBLE_EQ(cost.target_ms(9, 0), 17);
  EXPECT_DOUBLE_EQ(cost.target_ms(4, 0), 10);
  EXPECT_DOUBLE_EQ(cost.target_ms(12, 0), 17);
}

TEST(StepCostModel, OutliersMoveNothing) {
  StepCostModel cost(linear());
  for (int i = 0; i < 40; ++i) cost.add_target(4, 0, i % 3 == 2 ? 500 : 3);  // two of seven, or three
  EXPECT_DOUBLE_EQ(cost.target_ms(4, 0), 3);
  cost.add_target(7, 0, 1000);  // a first measurement counts, but not for more than three times what was expected
  EXPECT_LE(cost.target_ms(7, 0), 3 * 6.0);
  cost.add_target(7, 0, 6);
  EXPECT_DOUBLE_EQ(cost.target_ms(7, 0), 6);
}

TEST(StepCostModel, FollowsAMachineThatChanges) {
  StepCostModel cost(linear());
  for (int i = 0; i < 20; ++i) cost.add_target(1, 0, 2);
  for (int i = 0; i < 5; ++i) cost.add_target(1, 0, 6);
  EXPECT_DOUBLE_EQ(cost.target_ms(1, 0), 6);
}

TEST(StepCostModel, LearnsWhatKeysCost) {
  StepCostModel cost(linear());
  for (int i = 0; i < 600; ++i) {
    const int32_t rows = 1 + i % 4;
    const int64_t keys = int64_t{rows} * (100 + 7 * i);
    cost.add_target(rows, keys, 0.2 + 0.1 * rows + 0.0005 * static_cast<double>(keys));
  }
  EXPECT_NEAR(cost.target_ms(2, 2 * 4000), 0.4 + 0.0005 * 8000, 0.05);
  EXPECT_NEAR(cost.target_ms(2, 2 * 8000), 0.4 + 0.0005 * 16000, 0.2);  // beyond what was measured
}

TEST(StepCostModel, SeparatesObservingFromProposing) {
  StepCostModel cost(linear());
  for (int i = 0; i < 5; ++i) cost.add_draft(0, 16, 0.8);
  for (int i = 0; i < 5; ++i) cost.add_draft(2, 16, 3.0);
  EXPECT_NEAR(cost.observe_ms(16), 0.8, 1e-12);
  EXPECT_NEAR(cost.propose_ms(2), 2.2, 1e-12);
  cost.add_draft(0, 0, 5);  // nothing was done
  EXPECT_NEAR(cost.observe_ms(16), 0.8, 1e-12);
}

TEST(StepCostModel, IgnoresTimesThatAreNone) {
  StepCostModel cost(linear());
  for (double ms : {0.0, -1.0, std::nan("")}) cost.add_target(1, 0, ms);
  EXPECT_DOUBLE_EQ(cost.target_ms(1, 0), 2);
  EXPECT_GT(cost.target_ms(1 << 20, int64_t{1} << 40), 0);  // beyond every step
}

}  // namespace
}  // namespace ddtree
