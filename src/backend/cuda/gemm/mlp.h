// down · (silu(gate · x) ⊙ (up · x)) in bf16: a dense layer's MLP or a mixture's shared expert, as two launches.
#pragma once

#include "backend/cuda/gemm/gemm.h"

namespace ddtree::cuda {

struct MlpShape {
  int32_t hidden = 0;  // multiple of 64
  int32_t inter = 0;   // multiple of 64
};

// Sizes of the two products; gate and up of a value are neighbouring outputs of the first.
GemmShape mlp_gate_up(const MlpShape& shape);
GemmShape mlp_down(const MlpShape& shape);
Status check_mlp_shape(const MlpShape& shape);

// The three matrices in checkpoint order, bf16 on the device: gate and up [inter, hidden], down [hidden, inter], dense.
Status pack_mlp(const MlpShape& shape, const void* gate, const void* up, const void* down, void* packed_gate_up,
                void* packed_down, cudaStream_t stream);

struct MlpArgs {
  const void* gate_up = nullptr;  // packed, gemm_bytes(mlp_gate_up(…))
  const void* down = nullptr;     // packed, gemm_bytes(mlp_down(…))
  const void* x = nullptr;        // [rows, hidden] bf16
  void* out = nullptr;            // [rows, hidden] bf16
  int32_t rows = 0;
  void* workspace = nullptr;  // mlp_workspace_bytes(…, ≥ rows), 256-byte aligned; init_gemm_workspace once
};

int64_t mlp_workspace_bytes(const MlpShape& shape, int32_t max_rows);
Status run_mlp(const MlpShape& shape, const Gpu& gpu, const MlpArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
