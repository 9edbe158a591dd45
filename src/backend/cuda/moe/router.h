// The router of a mixture of experts on a GPU: float32 logits of all experts, then each row's choice, as
// MoeRouting (backend/weights.h) says. Two launches; no allocation and no waiting host, as in experts.h.
//
// A row's choice depends on its own activations only: not on the other rows, their number or order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/gemm/gemm.h"
#include "backend/weights.h"
#include "base/result.h"

namespace ddtree::cuda {

struct RouterShape {
  MoeRouting routing;
  int32_t experts = 0;
  int32_t hidden = 0;
  bool wide = false;  // float32 weights; else bf16
};

// Names the field, its value and the limit where the kernels don't take the shape.
Status check_router_shape(const RouterShape& shape);

// --- weights ---

// The product behind the logits. A float32 weight is the sum of three bf16 values, exactly: three rows of the product.
GemmShape router_gemm(const RouterShape& shape);

// `weights` [experts, hidden] bf16 or float32, dense, on the device → gemm_bytes(router_gemm(shape)). Float32 weights
// are split in `scratch`, router_scratch_bytes(shape), which is free again when the stream has come here.
int64_t router_scratch_bytes(const RouterShape& shape);
Status pack_router(const RouterShape& shape, const void* weights, void* packed, void* scratch, cudaStream_t stream);

// --- launch ---

struct RouterArgs {
  const void* packed = nullptr;
  const float* bias = nullptr;  // [experts], for selection only; null: none
  const void* x = nullptr;      // [rows, hidden] bf16
  int32_t* ids = nullptr;       // [rows, top_k] ascending; −1 in rows that are not live
  float* weights = nullptr;     // [rows, top_k]
  int32_t rows = 0;
  const int32_t* live_rows = nullptr;  // on the device: rows from this one on choose no expert; null: all are live
  void* workspace = nullptr;  // router_workspace_bytes(…, ≥ rows), 256-byte aligned; init_gemm_workspace once
};

int64_t router_workspace_bytes(const RouterShape& shape, int32_t max_rows);

// The shape must have passed check_router_shape.
Status run_router(const RouterShape& shape, const Gpu& gpu, const RouterArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
