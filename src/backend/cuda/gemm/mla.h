// Multi-head latent attention's products on a GPU, absorbed: queries carried into the latent space, the latent and key
// of each row into the cache, and what was attended back out.
//   project: x → [q_a; kv_a] → norms, key rotated, both to the cache → q_b, its rotary part turned → W_UK per head → q
//   output:  attended → W_UV per head → o
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/pointwise/heads.h"

namespace ddtree::cuda {

struct MlaShape {
  int32_t hidden = 0, heads = 0;
  int32_t q_lora = 0;  // 0: q_b reads x
  int32_t kv_lora = 0, nope = 0, rope = 0, v = 0;
};

// Sizes of the products.
GemmShape mla_down(const MlaShape& s);  // q_a over kv_a
GemmShape mla_q_b(const MlaShape& s);   // a group a head
GemmShape mla_k_up(const MlaShape& s);  // W_UK transposed, a group a head
GemmShape mla_v_up(const MlaShape& s);  // W_UV, a group a head
GemmShape mla_o(const MlaShape& s);
Status check_mla_shape(const MlaShape& shape);

// Packed, each of gemm_bytes(…) of its product.
struct MlaWeights {
  const void* down = nullptr;
  const void* q_b = nullptr;
  const void* k_up = nullptr;
  const void* v_up = nullptr;
  const void* o = nullptr;
  const float* q_norm = nullptr;
  const float* kv_norm = nullptr;
  float eps = 0;
  GpuRope rope;
};

// Checkpoint order, bf16 on the device: q_a [q_lora, hidden] (none without q_lora), q_b [heads · (nope + rope), …],
// kv_a [kv_lora + rope, hidden], kv_b [heads · (nope + v), kv_lora], o [hidden, heads · v].
struct MlaMatrices {
  const void *q_a = nullptr, *q_b = nullptr, *kv_a = nullptr, *kv_b = nullptr, *o = nullptr;
};
struct MlaPacked {
  void *down = nullptr, *q_b = nullptr, *k_up = nullptr, *v_up = nullptr, *o = nullptr;
};
Status pack_mla(const MlaShape& shape, bool interleaved, const MlaMatrices& from, const MlaPacked& to,
                cudaStream_t stream);

// For either verb below, 256-byte aligned; init_gemm_workspace once.
int64_t mla_workspace_bytes(const MlaShape& shape, int32_t max_rows);

struct MlaProjectArgs {
  const void* x = nullptr;  // [rows, hidden] bf16
  void* q = nullptr;        // [rows, heads, kv_lora + rope] bf16
  int32_t rows = 0;
  CacheRows to;
  void* workspace = nullptr;
};
Status run_mla_project(const MlaShape& shape, const Gpu& gpu, const MlaWeights& weights, const MlaProjectArgs& args,
                       cudaStream_t stream);

struct MlaOutputArgs {
  const void* attended = nullptr;  // [rows, heads, kv_lora] bf16
  void* out = nullptr;             // [rows, hidden] bf16
  int32_t rows = 0;
  void* workspace = nullptr;
};
Status run_mla_output(const MlaShape& shape, const Gpu& gpu, const MlaWeights& weights, const MlaOutputArgs& args,
                      cudaStream_t stream);

}  // namespace ddtree::cuda
