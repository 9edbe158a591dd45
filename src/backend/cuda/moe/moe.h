// A whole mixture-of-experts layer on a GPU: router, routed INT4 experts, shared expert and their sum. No allocation
// and no waiting host, as in experts.h.
//
// A row's output is Σ w · y over its experts in ascending order, then the shared expert's y, in float32, rounded to
// bf16 once; each y is bf16. It depends on the row's own activations only.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "backend/cuda/gemm/mlp.h"
#include "backend/cuda/moe/experts.h"
#include "backend/cuda/moe/router.h"
#include "base/result.h"

namespace ddtree::cuda {

struct MoeShape {
  ExpertShape experts;
  RouterShape router;
  int32_t shared_inter = 0;  // 0: no shared expert
};

// The parts must agree, and each must be one that its kernels take.
Status check_moe_shape(const MoeShape& shape);
MlpShape shared_shape(const MoeShape& shape);

// Packed by pack_expert, pack_router and pack_mlp.
struct MoeWeights {
  const void* gate_up = nullptr;
  const void* down = nullptr;
  const void* router = nullptr;
  const float* bias = nullptr;  // [experts]; null: none
  const void* shared_gate_up = nullptr;
  const void* shared_down = nullptr;
};

// A second stream and two events of the caller's, on which the shared expert runs beside the router. The bits don't
// depend on it.
struct MoeSide {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
};

struct MoeArgs {
  MoeWeights weights;
  const void* x = nullptr;  // [rows, hidden] bf16
  void* out = nullptr;      // [rows, hidden] bf16
  int32_t rows = 0;
  const int32_t* live_rows = nullptr;  // on the device: rows from this one on are padding; null: none
  void* workspace = nullptr;           // moe_workspace_bytes(…, max_rows), 256-byte aligned
  int32_t max_rows = 0;                // that the workspace was made for
  const MoeSide* side = nullptr;       // null: the shared expert runs before the router
  std::optional<ExpertMode> mode;      // for tests and measurements
};

int64_t moe_workspace_bytes(const MoeShape& shape, int32_t max_rows);

// Once after allocation. Every launch leaves what it needs.
Status init_moe_workspace(const MoeShape& shape, int32_t max_rows, void* workspace, cudaStream_t stream);

// The shape must have passed check_moe_shape.
Status run_moe(const MoeShape& shape, const ExpertDevice& device, const MoeArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
