// Sums over a CTA in one fixed tree, and the factor of a norm.
#pragma once

#include "backend/cuda/math.cuh"

namespace ddtree::cuda {

// Every thread gets the sum: lanes by warp_sum, then warps in order. `parts` may be used again after a __syncthreads().
template <int Threads>
__device__ inline float block_sum(float v, float (&parts)[Threads / 32]) {
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0.f;
#pragma unroll
  for (int w = 0; w < Threads / 32; ++w) sum = __fadd_rn(sum, parts[w]);
  return sum;
}

// 1 / √(squares / width + eps).
__device__ inline float norm_factor(float squares, float width, float eps) {
  return __frsqrt_rn(__fadd_rn(__fdiv_rn(squares, width), eps));
}

}  // namespace ddtree::cuda
