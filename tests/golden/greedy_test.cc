// Greedy text: equal to transformers' for every golden prompt, in every draft mode, at every budget, in every batch.

#include <gtest/gtest.h>

#include <algorithm>

#include "golden/demo.h"

namespace ddtree {
namespace {

std::string name(const SpecOptions& spec) {
  return std::string(spec_mode_name(spec.mode)) + ":" + std::to_string(spec.budget);
}

// Every prompt, as often as it takes to fill the streams, and `tokens` of its golden continuation.
// Returns how many passes had their tree cut to fit the step.
int expect_golden(EngineCore& engine, const SpecOptions& spec, int streams, int tokens) {
  const int n = std::max(streams, kGoldenPrompts);
  std::vector<Request> requests;
  for (int i = 0; i < n; ++i) requests.push_back(greedy_request(golden_prompt(i % kGoldenPrompts), tokens, spec));
  const std::vector<Decoded> results = decode(engine, std::move(requests), streams);
  for (int i = 0; i < n; ++i) {
    std::vector<int32_t> expected = golden_greedy(i % kGoldenPrompts);
    expected.resize(tokens);
    EXPECT_EQ(results[i].ids(), expected) << "prompt " << i << ", " << name(spec) << ", " << streams << " streams";
    EXPECT_EQ(results[i].finish, FinishReason::kLength);
  }
  EXPECT_EQ(engine.free_pages(), engine.pages());
  int trimmed = 0;
  for (const Decoded& result : results) trimmed += result.stats.trimmed;
  return trimmed;
}

class GreedyCpu : public testing::TestWithParam<int32_t> {  // the budget
 protected:
  // Returns the tree mode's passes that were cut.
  static int expect_both_modes(int streams, int tokens) {
    const auto engine = DemoPair::on("cpu").engine(streams);
    expect_golden(*engine, {SpecMode::kChain, GetParam(), false}, streams, tokens);
    return expect_golden(*engine, {SpecMode::kTree, GetParam(), false}, streams, tokens);
  }
};

TEST_P(GreedyCpu, AloneEqualsTheGoldens) { expect_both_modes(1, kGoldenTokens); }
TEST_P(GreedyCpu, ThreeUnequalStreamsEqualTheGoldens) { expect_both_modes(3, 48); }
// Sixteen trees of 128 nodes need 2064 rows, more than the 1088 of a step: they are trimmed, and the text stays.
TEST_P(GreedyCpu, SixteenUnequalStreamsEqualTheGoldens) {
  const int trimmed = expect_both_modes(16, 40);
  EXPECT_TRUE(trimmed > 0 || GetParam() < 128);
}
INSTANTIATE_TEST_SUITE_P(Budgets, GreedyCpu, testing::Values(0, 1, 2, 8, 16, 31, 32, 33, 63, 64, 65, 128));

TEST(GreedyPlain, EqualsTheGoldensAloneAndInBatches) {
  for (int streams : {1, 3, 16})
    expect_golden(*DemoPair::on("cpu").engine(streams), {SpecMode::kOff, 0, false}, streams, kGoldenTokens);
}

TEST(GreedyAuto, EqualsTheGoldensAloneAndInBatches) {
  for (int streams : {1, 3, 16})
    expect_golden(*DemoPair::on("cpu").engine(streams), {SpecMode::kAuto, 64, false}, streams, 64);
}

TEST(GreedyChainFirst, TreesEqualTheGoldens) {
  const auto engine = DemoPair::on("cpu").engine(3);
  for (int32_t budget : {8, 33, 64}) expect_golden(*engine, {SpecMode::kTree, budget, true}, 3, 64);
}

// Plain, chain and tree streams of several budgets beside each other.
TEST(GreedyMixed, EqualsTheGoldens) {
  const std::vector<SpecOptions> specs = {{SpecMode::kTree, 64, false},  {SpecMode::kOff, 0, false},
                                          {SpecMode::kChain, 15, false}, {SpecMode::kTree, 0, false},
                                          {SpecMode::kTree, 8, false},   {SpecMode::kTree, 33, true}};
  const auto engine = DemoPair::on("cpu").engine(6);
  std::vector<Request> requests;
  for (int i = 0; i < kGoldenPrompts; ++i)
    requests.push_back(greedy_request(golden_prompt(i), 64, specs[i % specs.size()]));
  const std::vector<Decoded> results = decode(*engine, std::move(requests), 6);
  for (int i = 0; i < kGoldenPrompts; ++i) {
    std::vector<int32_t> expected = golden_greedy(i);
    expected.resize(64);
    EXPECT_EQ(results[i].ids(), expected) << "prompt " << i;
  }
}

TEST(GreedyPortable, EqualsTheGoldens) {
  const auto engine = DemoPair::on("cpu", "portable").engine(3);
  expect_golden(*engine, {SpecMode::kOff, 0, false}, 3, 24);
  expect_golden(*engine, {SpecMode::kTree, 16, false}, 3, 48);
}

class GreedyRef : public testing::TestWithParam<int> {};  // the prompt

TEST_P(GreedyRef, EqualsTheGoldens) {
  const auto engine = DemoPair::on("ref").engine(1);
  const Decoded whole =
      decode(*engine, greedy_request(golden_prompt(GetParam()), kGoldenTokens, {SpecMode::kOff, 0, false}));
  EXPECT_EQ(whole.ids(), golden_greedy(GetParam()));
  for (const SpecOptions& spec : {SpecOptions{SpecMode::kChain, 15, false}, {SpecMode::kTree, 16, false}}) {
    std::vector<int32_t> expected = golden_greedy(GetParam());
    expected.resize(16);
    EXPECT_EQ(decode(*engine, greedy_request(golden_prompt(GetParam()), 16, spec)).ids(), expected) << name(spec);
  }
}
INSTANTIATE_TEST_SUITE_P(Prompts, GreedyRef, testing::Range(0, kGoldenPrompts));

}  // namespace
}  // namespace ddtree
