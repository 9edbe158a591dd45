// Random bf16 matrices on the device, for benchmarks and GPU tests. Every value is a hash of its place, so that the
// host can recompute any of them without copying the matrix back, and independently of how it is packed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

#include "backend/cuda/gemm/gemm.h"
#include "tensor/buffer.h"

namespace ddtree::cuda {

// bf16 bits of value `index`, uniform in [−1, 1) · 2⁻⁵ with 7 significant bits.
constexpr uint16_t random_weight(uint64_t seed, int64_t index) {
  uint64_t v = seed * 0x9e3779b97f4a7c15ull + static_cast<uint64_t>(index);
  v ^= v >> 33;
  v *= 0xff51afd7ed558ccdull;
  v ^= v >> 33;
  v *= 0xc4ceb9fe1a85ec53ull;
  const auto bits = static_cast<uint32_t>(v >> 32);
  const uint32_t exponent = 122 - (bits >> 24 & 3);  // 2⁻⁵ … 2⁻⁸
  return static_cast<uint16_t>((bits & 0x8000u) | exponent << 7 | (bits & 0x7fu));
}

// A packed matrix whose group g, output o, input i is random_weight(seed, (g · rows + o) · in + i).
Result<Buffer> random_gemm_weights(const GemmShape& shape, uint64_t seed, cudaStream_t stream);

// That output of group 0 … for an input row, in double.
double random_gemm_output(const GemmShape& shape, uint64_t seed, int32_t group, int32_t output,
                          std::span<const float> x);

// A dense [rows, columns] matrix of random_weight(seed, row · columns + column), on the device.
Result<Buffer> random_matrix(int64_t rows, int64_t columns, uint64_t seed, cudaStream_t stream);
std::vector<uint16_t> random_host_matrix(int64_t rows, int64_t columns, uint64_t seed);

}  // namespace ddtree::cuda
