// The policy of `auto` in worlds without a clock: against the best fixed mode of each workload, and against plain
// decoding.

#include <gtest/gtest.h>

#include <cmath>

#include "engine/policy_simulator.h"

namespace ddtree {
namespace {

constexpr double kRegret = 0.03;  // against the best fixed mode, which nobody knows beforehand
constexpr double kLoss = 0.01;    // against plain decoding
constexpr int32_t kBudget = 64;

const std::vector<SpecOptions>& fixed_modes() {
  static const std::vector<SpecOptions> modes = [] {
    std::vector<SpecOptions> out = {{SpecMode::kOff, 0, false}};
    for (int budget : {3, 7, 15}) out.push_back({SpecMode::kChain, budget, false});
    for (int budget : {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 24, 32, 48, 64})
      out.push_back({SpecMode::kTree, budget, false});
    return out;
  }();
  return modes;
}

const std::vector<Workload>& workloads() {
  static const std::vector<Workload> all = {
      {"1 stream", 1, 4000, {0}},
      {"1 stream, half unforeseen", 1, 4000, {0.5}},
      {"1 stream, unforeseeable", 1, 4000, {0.97}},
      {"16 streams", 16, 16000, {0}},
      {"16 unequal streams", 16, 16000, {0, 0.1, 0.6, 0.97}},
  };
  return all;
}

const RecordedBlocks& blocks() {
  static const RecordedBlocks recorded = RecordedBlocks::load();
  return recorded;
}

class PolicySimulation : public testing::TestWithParam<size_t> {
 protected:
  const World world_ = worlds()[GetParam()];
};

TEST_P(PolicySimulation, IsNeverFarFromTheBestFixedModeNorBelowPlainDecoding) {
  std::printf("%-20s %-26s %9s %9s %-8s %9s %8s %7s %7s %6s\n", "world", "workload", "plain ms", "best ms", "best",
              "auto ms", "regret", "gain", "nodes", "probes");
  for (const Workload& workload : workloads()) {
    SCOPED_TRACE(world_.name + ", " + workload.name);
    double best = HUGE_VAL, plain = 0;
    std::string name;
    for (const SpecOptions& spec : fixed_modes()) {
      const double ms = simulate(blocks(), world_, workload, spec).ms_per_token();
      if (spec.mode == SpecMode::kOff) plain = ms;
      if (ms < best) best = ms, name = std::string(spec_mode_name(spec.mode)) + ":" + std::to_string(spec.budget);
    }
    const SimulatedRun run = simulate(blocks(), world_, workload, {SpecMode::kAuto, kBudget, false});
    const double ms = run.ms_per_token(), nodes = static_cast<double>(run.nodes) / static_cast<double>(run.steps);
    std::printf("%-20s %-26s %9.4f %9.4f %-8s %9.4f %7.2f%% %6.2fx %7.2f %6d\n", world_.name.c_str(),
                workload.name.c_str(), plain, best, name.c_str(), ms, 100 * (ms / best - 1), plain / ms, nodes,
                static_cast<int>(run.policy.probes));
    EXPECT_LE(ms, (1 + kRegret) * best);
    EXPECT_LE(ms, (1 + kLoss) * plain);
    EXPECT_LE(run.policy.probe_ms, kLoss * run.policy.total_ms);
  }
}

TEST_P(PolicySimulation, IsTheSameEveryTime) {
  const Workload& workload = workloads().back();
  const SimulatedRun one = simulate(blocks(), world_, workload, {SpecMode::kAuto, kBudget, false});
  const SimulatedRun two = simulate(blocks(), world_, workload, {SpecMode::kAuto, kBudget, false});
  EXPECT_EQ(one.ms, two.ms);
  EXPECT_EQ(one.nodes, two.nodes);
  EXPECT_EQ(one.policy.probes, two.policy.probes);
}

INSTANTIATE_TEST_SUITE_P(Worlds, PolicySimulation, testing::Range<size_t>(0, 8));

TEST(PolicySimulationWorlds, AreAllRun) { EXPECT_EQ(worlds().size(), 8u); }

}  // namespace
}  // namespace ddtree
