// A random mixture-of-experts layer on the device, for benchmarks and GPU tests, and its rows on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/moe/moe.h"
#include "support/random_experts.h"
#include "tensor/buffer.h"

namespace ddtree::cuda {

struct RandomMoe {
  MoeShape shape;
  uint64_t seed = 0;
  RandomExperts experts;
  Buffer bias;
  std::vector<Buffer> router, shared_gate_up, shared_down;  // the same weights several times, in different memory

  MoeWeights weights(int copy) const;
};

// Router weights are bf16, output e input i of them random_weight(seed, e · hidden + i); biases are in [0, 0.1).
Result<RandomMoe> make_random_moe(const MoeShape& shape, uint64_t seed, int copies, cudaStream_t stream);
float random_bias(uint64_t seed, int32_t expert);

// One row in double, nothing rounded in between but the scores to float32, as the reference backend has it. Sigmoid
// scores, one group.
struct MoeRow {
  std::vector<int32_t> ids;  // ascending
  std::vector<float> weights;
  double margin = 0;  // between the biased scores of the last expert chosen and the best one not
  std::vector<double> out;
};
MoeRow reference_moe_row(const MoeShape& shape, uint64_t seed, std::span<const float> x);

}  // namespace ddtree::cuda
