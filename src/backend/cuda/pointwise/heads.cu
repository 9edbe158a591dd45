// What:    norms of latents (MLA) and of heads (GQA), rotation, cache writes
// Mapping: MLA: one CTA a row. GQA: one warp a head of a row
// Bound:   latency
// Limits:  any sizes
#include "backend/cuda/pointwise/heads.h"

#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/math.cuh"
#include "backend/cuda/pointwise/block_sum.cuh"
#include "backend/cuda/ptx.cuh"

namespace ddtree::cuda {
namespace {

constexpr int kLatentThreads = 512;
constexpr int kHeadThreads = 128;

__device__ inline float2 turn_of(const GpuRope& rope, int position, int pair) {
  float s, c;
  sincosf(__fmul_rn(static_cast<float>(position), rope.inv_freq[pair]), &s, &c);
  return make_float2(__fmul_rn(c, rope.amplitude), __fmul_rn(s, rope.amplitude));
}

// Places of a pair's two values among the rotated ones.
__device__ inline int2 pair_places(const GpuRope& rope, int pair) {
  return rope.interleaved ? make_int2(2 * pair, 2 * pair + 1) : make_int2(pair, pair + rope.dim / 2);
}

__device__ inline float squares_of(const float* x, int n) {
  float sum = 0.f;
  for (int i = threadIdx.x; i < n; i += kLatentThreads) sum = __fmaf_rn(x[i], x[i], sum);
  return sum;
}
__device__ inline void scale_row(bf16* to, const float* x, const float* gain, float factor, int n) {
  for (int i = threadIdx.x; i < n; i += kLatentThreads)
    to[i] = __float2bfloat16_rn(__fmul_rn(__fmul_rn(x[i], factor), gain[i]));
}

__global__ void __launch_bounds__(kLatentThreads) latent_kernel(const __grid_constant__ LatentArgs a) {
  __shared__ float q_parts[kLatentThreads / 32], kv_parts[kLatentThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  const int pairs = a.rope.dim / 2, position = a.to.position[row], kv_row = a.to.kv_row[row];
  const float* low = a.sums + row * (a.q_lora + a.kv_lora + a.rope.dim);
  const float* latent = low + a.q_lora;
  const float* key = latent + a.kv_lora;
  const float q_squares = squares_of(low, a.q_lora), kv_squares = squares_of(latent, a.kv_lora);
  if (a.q_lora > 0) {
    const float q_factor =
        norm_factor(block_sum<kLatentThreads>(q_squares, q_parts), static_cast<float>(a.q_lora), a.eps);
    scale_row(static_cast<bf16*>(a.low) + row * a.q_lora, low, a.q_gain, q_factor, a.q_lora);
  }
  const float kv_factor =
      norm_factor(block_sum<kLatentThreads>(kv_squares, kv_parts), static_cast<float>(a.kv_lora), a.eps);
  bf16* cached = kv_row < 0 ? nullptr : static_cast<bf16*>(a.to.cache) + kv_row * a.to.cache_stride;
  if (cached != nullptr) scale_row(cached, latent, a.kv_gain, kv_factor, a.kv_lora);
  for (int pair = threadIdx.x; pair < pairs; pair += kLatentThreads) {
    const float2 turn = turn_of(a.rope, position, pair);
    static_cast<float2*>(a.turns)[row * pairs + pair] = turn;
    if (cached == nullptr) continue;
    const int2 at = pair_places(a.rope, pair);
    const float2 turned = rotate_pair(key[at.x], key[at.y], turn);
    cached[a.kv_lora + at.x] = __float2bfloat16_rn(turned.x);
    cached[a.kv_lora + at.y] = __float2bfloat16_rn(turned.y);
  }
}

// One warp: out = rope(norm(x)) of one head; gain null: no norm.
__device__ void finish_head(const HeadsArgs& a, bf16* out, const float* x, const float* gain, int position) {
  const int lane = threadIdx.x % 32;
  float factor = 1.f;
  if (gain != nullptr) {
    float sum = 0.f;
    for (int i = lane; i < a.head_dim; i += 32) sum = __fmaf_rn(x[i], x[i], sum);
    factor = norm_factor(warp_sum(sum), static_cast<float>(a.head_dim), a.eps);
  }
  const auto value = [&](int i) { return gain == nullptr ? x[i] : __fmul_rn(__fmul_rn(x[i], factor), gain[i]); };
  for (int pair = lane; pair < a.rope.dim / 2; pair += 32) {
    const int2 at = pair_places(a.rope, pair);
    const float2 turned = rotate_pair(value(at.x), value(at.y), turn_of(a.rope, position, pair));
    out[at.x] = __float2bfloat16_rn(turned.x);
    out[at.y] = __float2bfloat16_rn(turned.y);
  }
  for (int i = a.rope.dim + lane; i < a.head_dim; i += 32) out[i] = __float2bfloat16_rn(value(i));
}

__global__ void __launch_bounds__(kHeadThreads) heads_kernel(const __grid_constant__ HeadsArgs a) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int queries = a.q == nullptr ? 0 : a.heads, per_row = queries + 2 * a.kv_heads;
  const int64_t item = blockIdx.x * int64_t{kHeadThreads / 32} + threadIdx.x / 32, row = item / per_row;
  if (row >= a.rows) return;
  const int head = static_cast<int>(item % per_row), position = a.to.position[row], kv_row = a.to.kv_row[row];
  if (head < queries) {
    const int64_t at = (row * a.heads + head) * a.head_dim;
    finish_head(a, static_cast<bf16*>(a.q_out) + at, a.q + at, a.q_gain, position);
    return;
  }
  if (kv_row < 0) return;
  const int kv_head = head - queries;  // keys, then values
  const float* x = a.kv + (row * 2 * a.kv_heads + kv_head) * a.head_dim;
  bf16* out = static_cast<bf16*>(a.to.cache) + kv_row * a.to.cache_stride + int64_t{kv_head} * a.head_dim;
  if (kv_head < a.kv_heads) {
    finish_head(a, out, x, a.k_gain, position);
  } else {
    for (int i = threadIdx.x % 32; i < a.head_dim; i += 32) out[i] = __float2bfloat16_rn(x[i]);
  }
}

}  // namespace

Status run_latent_norms(const LatentArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return {};
  return cuda_status(
      launch_after(latent_kernel, dim3(static_cast<unsigned>(args.rows)), kLatentThreads, 0, stream, args),
      "norms of " + std::to_string(args.rows) + " latents");
}

Status run_head_norms(const HeadsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return {};
  const int64_t items = int64_t{args.rows} * ((args.q == nullptr ? 0 : args.heads) + 2 * args.kv_heads);
  const auto blocks = static_cast<unsigned>((items + kHeadThreads / 32 - 1) / (kHeadThreads / 32));
  return cuda_status(launch_after(heads_kernel, dim3(blocks), kHeadThreads, 0, stream, args),
                     "norms of the heads of " + std::to_string(args.rows) + " rows");
}

}  // namespace ddtree::cuda
