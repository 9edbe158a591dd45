// Greedy text: equal to transformers' for every golden prompt, in every draft mode, at every budget, in every batch.

#include <gtest/gtest.h>

#include <algorithm>

#include "golden/demo.h"

namespace ddtree {
namespace {

std::vector<SpecOptions> all_specs(const std::vector<int32_t>& budgets) {
  std::vector<SpecOptions> specs = {{SpecMode::kOff, 0, false}};
  for (SpecMode mode : {SpecMode::kChain, SpecMode::kTree})
    for (int32_t budget : budgets) specs.push_back({mode, budget, false});
  return specs;
}

const std::vector<int32_t> kBudgets = {0, 1, 2, 8, 16, 31, 32, 33, 63, 64, 65, 128};

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

TEST(GreedyCpu, AloneEqualsTheGoldens) {
  const auto engine = DemoPair::on("cpu").engine(1);
  for (const SpecOptions& spec : all_specs(kBudgets)) expect_golden(*engine, spec, 1, kGoldenTokens);
}

TEST(GreedyCpu, ThreeUnequalStreamsEqualTheGoldens) {
  const auto engine = DemoPair::on("cpu").engine(3);
  for (const SpecOptions& spec : all_specs(kBudgets)) expect_golden(*engine, spec, 3, kGoldenTokens);
}

// Sixteen trees of 128 nodes need 2064 rows, more than the 1088 of a step: they are trimmed, and the text stays.
TEST(GreedyCpu, SixteenUnequalStreamsEqualTheGoldens) {
  const auto engine = DemoPair::on("cpu").engine(16);
  for (const SpecOptions& spec : all_specs(kBudgets)) expect_golden(*engine, spec, 16, kGoldenTokens);
}

TEST(GreedyCpu, ChainFirstTreesEqualTheGoldens) {
  const auto engine = DemoPair::on("cpu").engine(3);
  for (int32_t budget : {8, 33, 64}) expect_golden(*engine, {SpecMode::kTree, budget, true}, 3, kGoldenTokens);
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
