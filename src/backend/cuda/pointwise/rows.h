// Verbs over rows of bf16 activations on a GPU: norms, residual sums, embedding, gathering. A row's bits depend on that
// row alone. All launches may be captured into a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/gemm/gemm.h"
#include "base/result.h"

namespace ddtree::cuda {

// Rows of `width` bf16 values, one after the other, 16-byte aligned.
struct RowShape {
  int32_t rows = 0;
  int32_t width = 0;  // multiple of 8, at most 16384
};

Status check_row_width(int32_t width, const char* what);

// out = x / √(mean x² + eps) ⊙ gain; gain is fp32.
Status run_rms_norm(const RowShape& shape, void* out, const void* x, const float* gain, float eps, cudaStream_t stream);
// The same of residual + delta, which also becomes the residual.
Status run_add_rms_norm(const RowShape& shape, void* out, void* residual, const void* delta, const float* gain,
                        float eps, cudaStream_t stream);
Status run_add(const RowShape& shape, void* residual, const void* delta, cudaStream_t stream);

// out[i] = x[rows[i]]; the list is on the device.
Status run_gather_rows(const RowShape& shape, void* out, const void* x, const int32_t* rows, cudaStream_t stream);
// out[i] = row token[i] of a packed table of one group; zeros for a token outside it.
Status run_embed(int32_t rows, void* out, const GemmWeights& table, const int32_t* token, cudaStream_t stream);

}  // namespace ddtree::cuda
