#include "backend/cuda/gemm/mlp.h"

#include <algorithm>

#include "base/checked.h"

namespace ddtree::cuda {
namespace {

// Both products' workspace, then the values between them.
int64_t product_bytes(const MlpShape& shape, int32_t rows) {
  const int64_t bytes =
      std::max(gemm_workspace_bytes(mlp_gate_up(shape), rows), gemm_workspace_bytes(mlp_down(shape), rows));
  return round_up(bytes, 256);
}

}  // namespace

GemmShape mlp_gate_up(const MlpShape& shape) { return {1, 2 * shape.inter, shape.hidden}; }
GemmShape mlp_down(const MlpShape& shape) { return {1, shape.hidden, shape.inter}; }

Status check_mlp_shape(const MlpShape& shape) {
  TRY(check_gemm_shape(mlp_gate_up(shape), "mlp gate_up"));
  return check_gemm_shape(mlp_down(shape), "mlp down");
}

Status pack_mlp(const MlpShape& shape, const void* gate, const void* up, const void* down, void* packed_gate_up,
                void* packed_down, cudaStream_t stream) {
  const GemmShape first = mlp_gate_up(shape), second = mlp_down(shape);
  TRY(clear_gemm(first, packed_gate_up, stream));
  TRY(pack_gemm(first, packed_gate_up, 0, 0, 2, {gate, shape.hidden, 1, shape.inter}, stream));
  TRY(pack_gemm(first, packed_gate_up, 0, 1, 2, {up, shape.hidden, 1, shape.inter}, stream));
  TRY(clear_gemm(second, packed_down, stream));
  return pack_gemm(second, packed_down, 0, 0, 1, {down, shape.inter, 1, shape.hidden}, stream);
}

int64_t mlp_workspace_bytes(const MlpShape& shape, int32_t max_rows) {
  return product_bytes(shape, max_rows) + 2 * static_cast<int64_t>(max_rows) * shape.inter;
}

Status run_mlp(const MlpShape& shape, const Gpu& gpu, const MlpArgs& args, cudaStream_t stream) {
  void* inner = static_cast<uint8_t*>(args.workspace) + product_bytes(shape, args.rows);
  GemmArgs gate_up;
  gate_up.x = args.x;
  gate_up.x_stride = shape.hidden;
  gate_up.rows = args.rows;
  gate_up.out = {.store = GemmStore::kSilu, .data = inner, .row_stride = shape.inter};
  gate_up.workspace = args.workspace;
  TRY(run_gemm({mlp_gate_up(shape), args.gate_up}, gpu, gate_up, stream));
  GemmArgs down;
  down.x = inner;
  down.x_stride = shape.inter;
  down.rows = args.rows;
  down.out = {.store = GemmStore::kBf16, .data = args.out, .row_stride = shape.hidden};
  down.workspace = args.workspace;
  return run_gemm({mlp_down(shape), args.down}, gpu, down, stream);
}

}  // namespace ddtree::cuda
