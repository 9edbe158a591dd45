// Grouped-query attention's products on a GPU: queries, keys and values with their norms and rotation, the cache write,
// and the output product.
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/pointwise/heads.h"

namespace ddtree::cuda {

struct GqaShape {
  int32_t hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
};

// Sizes of the products.
GemmShape gqa_q(const GqaShape& s);
GemmShape gqa_kv(const GqaShape& s);  // keys over values
GemmShape gqa_o(const GqaShape& s);
Status check_gqa_shape(const GqaShape& shape);

// Packed, each of gemm_bytes(…) of its product.
struct GqaWeights {
  const void* q = nullptr;
  const void* kv = nullptr;
  const void* o = nullptr;
  const float* q_norm = nullptr;  // null: none
  const float* k_norm = nullptr;
  float eps = 0;
  GpuRope rope;
};

// Checkpoint order, bf16 on the device: q [heads · head_dim, hidden], k and v [kv_heads · head_dim, hidden], o [hidden,
// heads · head_dim].
struct GqaMatrices {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;
};
struct GqaPacked {
  void *q = nullptr, *kv = nullptr, *o = nullptr;
};
Status pack_gqa(const GqaShape& shape, const GqaMatrices& from, const GqaPacked& to, cudaStream_t stream);

// For any verb below, 256-byte aligned; init_gemm_workspace once.
int64_t gqa_workspace_bytes(const GqaShape& shape, int32_t max_rows);

struct GqaProjectArgs {
  const void* x = nullptr;  // [rows, hidden] bf16
  void* q = nullptr;        // [rows, heads, head_dim] bf16; null: keys and values only
  int32_t rows = 0;
  CacheRows to;
  void* workspace = nullptr;
};
Status run_gqa_project(const GqaShape& shape, const Gpu& gpu, const GqaWeights& weights, const GqaProjectArgs& args,
                       cudaStream_t stream);

struct GqaOutputArgs {
  const void* attended = nullptr;  // [rows, heads, head_dim] bf16
  void* out = nullptr;             // [rows, hidden] bf16
  int32_t rows = 0;
  void* workspace = nullptr;
};
Status run_gqa_output(const GqaShape& shape, const Gpu& gpu, const GqaWeights& weights, const GqaOutputArgs& args,
                      cudaStream_t stream);

}  // namespace ddtree::cuda
