// Random INT4 experts on the device, for benchmarks and GPU tests. Every word is a hash of its place, so that the host
// can recompute any of them without copying the layer back, and independently of how it is packed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/moe/experts.h"
#include "tensor/buffer.h"

namespace ddtree::cuda {

enum class ExpertPart : uint32_t { kGate, kUp, kDown };

// Eight weights: word `i` of a row, in checkpoint order.
constexpr uint32_t mix(uint64_t v) {
  v ^= v >> 33;
  v *= 0xff51afd7ed558ccdull;
  v ^= v >> 33;
  v *= 0xc4ceb9fe1a85ec53ull;
  return static_cast<uint32_t>(v >> 32);
}
constexpr uint64_t random_key(uint64_t seed, ExpertPart part, int32_t expert) {
  return (seed * 4 + static_cast<uint64_t>(part)) * 0x9e3779b97f4a7c15ull + (static_cast<uint64_t>(expert) << 40);
}
constexpr uint32_t random_word(uint64_t key, int64_t index) { return mix(key + static_cast<uint64_t>(index)); }
// bf16 bits of a scale in [2⁻⁷, 2⁻⁶).
constexpr uint16_t random_scale(uint64_t key, int64_t index) {
  return static_cast<uint16_t>(0x3c00u | (mix(~key + static_cast<uint64_t>(index)) & 0x7fu));
}

struct RandomExperts {
  ExpertShape shape;
  uint64_t seed = 0;
  Buffer gate_up, down;  // packed
  double pack_ms = 0;    // device time of the repack
};

Result<RandomExperts> make_random_experts(const ExpertShape& shape, uint64_t seed, cudaStream_t stream);

// One row of the layer in double, nothing rounded in between; x [hidden], ids and weights [top_k].
std::vector<double> reference_row(const ExpertShape& shape, uint64_t seed, std::span<const float> x,
                                  std::span<const int32_t> ids, std::span<const float> weights);

// ‖got − want‖ / ‖want‖; infinite where either is not finite.
double relative_error(std::span<const uint16_t> got_bf16, std::span<const double> want);

// Uniform routing: top_k distinct experts a row, weights that add up to 2.827.
struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int32_t active = 0;  // distinct experts
};
Routing random_routing(const ExpertShape& shape, int32_t rows, uint64_t seed);

// Values in [−1, 1), as bf16 bits.
std::vector<uint16_t> random_activations(int64_t count, uint64_t seed);

}  // namespace ddtree::cuda
