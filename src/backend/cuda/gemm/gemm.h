// Dense bf16 products on a GPU: y = W·x for up to a thousand rows, with what belongs behind it (output.h). Weights are
// packed once on the device; launches read only them and a workspace that the caller owns and that all launches of a
// stream may share; nothing is allocated here, so launches can be captured into a CUDA graph.
//
// A row's bits depend on its own inputs only: not on the other rows, their number or order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "backend/cuda/gemm/output.h"
#include "backend/cuda/gemm/plan.h"
#include "base/result.h"

namespace ddtree::cuda {

// --- weights ---

// Rows to pack, on the device: weight (row, k) is data[row · row_stride + k · in_stride], bf16.
struct GemmSource {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t in_stride = 1;
  int32_t rows = 0;
};

// All weights zero, as the rows that pad a group to whole blocks must be. Then the parts go in: row i of the source
// becomes output first + i · step of `group`.
Status clear_gemm(const GemmShape& shape, void* packed, cudaStream_t stream);
Status pack_gemm(const GemmShape& shape, void* packed, int32_t group, int32_t first, int32_t step,
                 const GemmSource& source, cudaStream_t stream);

// A launch reads its weights before the kernels ahead of it have ended: the stream must be synchronised once between
// packing and the first launch.
struct GemmWeights {
  GemmShape shape;
  const void* data = nullptr;  // gemm_bytes(shape)
};

// --- launch ---

struct GemmArgs {
  const void* x = nullptr;  // bf16, 16-byte aligned; strides are multiples of 8
  int64_t x_stride = 0;     // elements between rows
  int64_t x_group = 0;      // elements between the inputs of neighbouring groups; 0: all have the same
  int32_t rows = 0;
  GemmOutput out;
  void* workspace = nullptr;     // gemm_workspace_bytes(shape, ≥ rows), 256-byte aligned
  std::optional<GemmTile> tile;  // for tests and measurements; the bits don't depend on it
};

int64_t gemm_workspace_bytes(const GemmShape& shape, int32_t max_rows);

// Once after allocation: clears the counters at its beginning, kGemmCounterBytes. Every launch leaves them clear.
Status init_gemm_workspace(void* workspace, cudaStream_t stream);
inline constexpr int64_t kGemmCounterBytes = 256 << 10;

// The shape must have passed check_gemm_shape.
Status run_gemm(const GemmWeights& weights, const Gpu& gpu, const GemmArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
