// What a step should cost by the sizes of the model alone: where StepCostModel starts.
#pragma once

#include "checkpoint/drafter_config.h"
#include "checkpoint/model_config.h"
#include "engine/step_cost.h"

namespace ddtree {

// How fast a machine reads weights and multiplies; proportions matter more than speeds.
struct MachineSpeed {
  double bytes_per_ms = 0;         // from memory
  double cached_bytes_per_ms = 0;  // of models that fit a cache
  double cache_bytes = 0;
  double flops_per_ms = 0;
};

MachineSpeed cpu_speed();
MachineSpeed gpu_speed();

// `drafter` may be null.
StepPrior step_prior(const ModelConfig& target, const DrafterConfig* drafter, const MachineSpeed& machine);

}  // namespace ddtree
