// Arithmetic that several kernels share, with explicit roundings: the same bits wherever it is inlined.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace ddtree::cuda {

__device__ inline uint32_t pack_bf16_pair(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}
__device__ inline float2 unpack_bf16_pair(uint32_t v) {
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

__device__ inline float silu_times(float gate, float up) {
  const float e = exp2f(__fmul_rn(gate, -1.4426950408889634f));
  return __fmul_rn(__fdividef(gate, __fadd_rn(1.f, e)), up);
}

// (x, y) turned by the angle whose cosine and sine are in `turn`.
__device__ inline float2 rotate_pair(float x, float y, float2 turn) {
  return make_float2(__fsub_rn(__fmul_rn(x, turn.x), __fmul_rn(y, turn.y)),
                     __fadd_rn(__fmul_rn(x, turn.y), __fmul_rn(y, turn.x)));
}

// Order of logits as an unsigned number: larger values first, −0 as 0, NaN last.
__device__ inline uint32_t rank_bits(float v) {
  const uint32_t bits = __float_as_uint(__fadd_rn(v, 0.f));
  if (v != v) return 0;
  return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}
__device__ inline float rank_value(uint32_t rank) {
  if (rank == 0) return __uint_as_float(0x7fffffffu);
  return __uint_as_float(rank >> 31 ? rank ^ 0x80000000u : ~rank);
}
// The same with the id, the lower one first. 0 is below every key.
__device__ inline uint64_t rank_key(float v, uint32_t id) {
  return static_cast<uint64_t>(rank_bits(v)) << 32 | (0xffffffffu - id);
}

template <class T>
__device__ inline T warp_max(T v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const T other = __shfl_xor_sync(~0u, v, d);
    v = other > v ? other : v;
  }
  return v;
}
// A fixed tree; every lane gets the sum.
__device__ inline float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = __fadd_rn(v, __shfl_xor_sync(~0u, v, d));
  return v;
}

}  // namespace ddtree::cuda
