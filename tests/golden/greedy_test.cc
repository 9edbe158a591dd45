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
void expect_golden(EngineCore& engine, const SpecOptions& spec, int streams, int tokens) {
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
}

class GreedyCpu : public testing::TestWithParam<int32_t> {  // the budget
 protected:
  static void expect_both_modes(int streams, int tokens) {
    const auto engine = DemoPair::on("cpu").engine(streams);
    for (SpecMode mode : {SpecMode::kChain, SpecMode::kTree})
      expect_golden(*engine, {mode, GetParam(), false}, streams, tokens);
  }
};

TEST_P(GreedyCpu, AloneEqualsTheGoldens) { expect_both_modes(1, kGoldenTokens); }
TEST_P(GreedyCpu, ThreeUnequalStreamsEqualTheGoldens) { expect_both_modes(3, 64); }
// Sixteen trees of 128 nodes need 2064 rows, more than the 1088 of a step: they are trimmed, and the text stays.
TEST_P(GreedyCpu, SixteenUnequalStreamsEqualTheGoldens) { expect_both_modes(16, 64); }
INSTANTIATE_TEST_SUITE_P(Budgets, GreedyCpu, testing::Values(0, 1, 2, 8, 16, 31, 32, 33, 63, 64, 65, 128));

TEST(GreedyPlain, EqualsTheGoldensAloneAndInBatches) {
  for (int streams : {1, 3, 16})
    expect_golden(*DemoPair::on("cpu").engine(streams), {SpecMode::kOff, 0, false}, streams, kGoldenTokens);
}

TEST(GreedyChainFirst, TreesEqualTheGoldens) {
  const auto engine = DemoPair::on("cpu").engine(3);
  for (int32_t budget : {8, 33, 64}) expect_golden(*engine, {SpecMode::kTree, budget, true}, 3, 64);
}

TEST(GreedyRef, ShortPromptsEqualTheGoldens) {
  const auto engine = DemoPair::on("ref").engine(2);
  for (const SpecOptions& spec :
       {SpecOptions{SpecMode::kOff, 0, false}, {SpecMode::kChain, 15, false}, {SpecMode::kTree, 16, false}}) {
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i) requests.push_back(greedy_request(golden_prompt(i), 24, spec));
    const std::vector<Decoded> results = decode(*engine, std::move(requests), 2);
    for (int i = 0; i < 5; ++i) {
      std::vector<int32_t> expected = golden_greedy(i);
      expected.resize(24);
      EXPECT_EQ(results[i].ids(), expected) << "prompt " << i << ", " << name(spec);
    }
  }
}

}  // namespace
}  // namespace ddtree
