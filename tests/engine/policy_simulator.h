// A world without a clock for the policy: recorded blocks are drafted, verified against the recorded texts, and charged
// by a cost curve. Any mode can be replayed, so the best fixed one is known for every workload.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/policy.h"
#include "engine/recorded_blocks.h"
#include "engine/request.h"

namespace ddtree {

// What things cost in a world, in milliseconds, and what the policy is told beforehand.
struct World {
  std::string name;
  std::function<double(int32_t rows, int64_t keys)> target;
  std::function<double(int32_t streams)> propose;
  double observed_ms = 0;  // a row
  StepPrior prior;
  int64_t learned_after = 0;  // tokens before times count: where the prior is far off
};

std::vector<World> worlds();

struct Workload {
  std::string name;
  int streams = 1;
  int64_t tokens = 0;            // of all streams together; when a text ends the next begins
  std::vector<double> surprise;  // stream s: share of tokens that no block foresees, [s mod size]
};

struct SimulatedRun {
  double ms = 0;
  int64_t tokens = 0, steps = 0, nodes = 0;
  PolicyTotals policy;

  double ms_per_token() const { return ms / static_cast<double>(tokens); }
};

SimulatedRun simulate(const RecordedBlocks& blocks, const World& world, const Workload& workload,
                      const SpecOptions& spec);

}  // namespace ddtree
