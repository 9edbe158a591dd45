// The language-model head on a GPU: per row the k largest logits with their ids, the logarithm of the sum of exp over
// the vocabulary and, if wanted, all logits. Exactly HeadResult's order: descending, equal ones by ascending id, NaN
// last.
//
// The product leaves the largest logit and the sum of exp of every 64 ids. The k best of those 64s hold the k largest
// logits, so only k · 64 of them are looked at again; with k = 1 logits don't reach memory at all.
#pragma once

#include "backend/cuda/gemm/gemm.h"

namespace ddtree::cuda {

inline constexpr int32_t kMaxHeadTop = 64;

struct HeadArgs {
  GemmWeights weights;      // shape {1, vocabulary, hidden}
  const void* x = nullptr;  // [rows, hidden] bf16
  int32_t rows = 0;
  int32_t k = 1;               // ≤ kMaxHeadTop and the vocabulary
  float* top_value = nullptr;  // [rows, k]
  int32_t* top_id = nullptr;   // [rows, k]
  float* lse = nullptr;        // [rows]
  float* logits = nullptr;     // [rows, vocabulary], or null
  void* workspace = nullptr;   // head_workspace_bytes(…, k), 256-byte aligned; init_gemm_workspace once
  std::optional<GemmTile> tile;
};

Status check_head(const GemmShape& shape, int32_t k);

// For any number of rows.
int64_t head_workspace_bytes(const GemmShape& shape, int32_t k);

Status run_head(const Gpu& gpu, const HeadArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
