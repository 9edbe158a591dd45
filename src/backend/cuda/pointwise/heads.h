// What attention needs between its products on a GPU: norms of latents or heads, rotation by position, cache writes.
// Sums come in as fp32, results go out as bf16.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/result.h"

namespace ddtree::cuda {

// Rotation on the device; angle of pair i: the fp32 product position · inv_freq[i], as rope_angle().
struct GpuRope {
  const float* inv_freq = nullptr;  // [dim / 2]
  int32_t dim = 0;
  float amplitude = 1;
  bool interleaved = false;
};

// Where a row's keys and values go: cache row kv_row[t], `cache_stride` elements apart; negative: nowhere.
struct CacheRows {
  const int32_t* position = nullptr;  // [rows]
  const int32_t* kv_row = nullptr;    // [rows]
  void* cache = nullptr;              // bf16
  int64_t cache_stride = 0;
};

struct LatentArgs {
  const float* sums = nullptr;  // [rows, q_lora + kv_lora + rope.dim]: low query, latent, key to rotate
  int32_t rows = 0, q_lora = 0, kv_lora = 0;
  const float* q_gain = nullptr;   // [q_lora]
  const float* kv_gain = nullptr;  // [kv_lora]
  float eps = 0;
  GpuRope rope;
  CacheRows to;           // normalised latent, then the rotated key
  void* low = nullptr;    // [rows, q_lora] bf16, normalised
  void* turns = nullptr;  // [rows, rope.dim / 2] float2: cosine and sine
};
Status run_latent_norms(const LatentArgs& args, cudaStream_t stream);

struct HeadsArgs {
  const float* q = nullptr;   // [rows, heads, head_dim], or null: keys and values only
  const float* kv = nullptr;  // [rows, 2, kv_heads, head_dim]: keys, values
  int32_t rows = 0, heads = 0, kv_heads = 0, head_dim = 0;
  const float* q_gain = nullptr;  // [head_dim] or null: no norm
  const float* k_gain = nullptr;
  float eps = 0;
  GpuRope rope;
  CacheRows to;           // keys of all heads, then values
  void* q_out = nullptr;  // [rows, heads, head_dim] bf16
};
Status run_head_norms(const HeadsArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
