#include "backend/cuda/gemm/gemm.h"

#include <algorithm>
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/gemm/gemm_kernel.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/tensor_map.h"
#include "base/check.h"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

using GemmKernel = void (*)(GemmKernelArgs, CUtensorMap);

struct KernelChoice {
  GemmKernel kernel;
  int threads;
};

template <int Groups, int Warps, bool Wgmma>
KernelChoice choice() {
  using C = GemmConfig<Groups, Warps, Wgmma>;
  return {gemm_kernel<C>, C::kThreads};
}

KernelChoice kernel_of(GemmTile tile, bool wgmma) {
  switch (tile) {
    case GemmTile::k8: return choice<1, 4, false>();
    case GemmTile::k16: return choice<2, 4, false>();
    case GemmTile::k32: return wgmma ? choice<4, 4, true>() : choice<4, 4, false>();
    case GemmTile::k64: return wgmma ? choice<8, 4, true>() : choice<8, 4, false>();
    case GemmTile::k64Tall: return choice<8, 8, true>();
  }
  return {};
}

Status launch_rows(const GemmWeights& w, const Gpu& gpu, const GemmArgs& args, int32_t first, int32_t rows,
                   cudaStream_t stream) {
  GemmTile tile = args.tile ? *args.tile : pick_gemm_tile(w.shape, gpu, rows);
  if (tile == GemmTile::k64Tall && !gpu.wgmma) tile = GemmTile::k64;  // eight warps' mma.sync would need more registers
  const GemmPlan plan = plan_gemm(w.shape, gpu, tile, rows);
  GemmKernelArgs a{};
  a.weights = static_cast<const uint8_t*>(w.data);
  a.x_group = static_cast<int32_t>(args.x_group);
  a.out = args.out;
  a.done = static_cast<uint32_t*>(args.workspace);
  a.partial = reinterpret_cast<float4*>(static_cast<uint8_t*>(args.workspace) + kGemmCounterBytes);
  a.first_row = first;
  a.rows = rows;
  a.k_blocks = w.shape.in / kGemmBlockK;
  a.row_blocks = plan.row_blocks;
  a.group_blocks = gemm_group_blocks(w.shape);
  a.group_rows = w.shape.rows;
  a.slices = plan.slices;
  a.column_tiles = plan.column_tiles;
  a.weight_blocks = plan.weight_blocks;
  a.input_blocks = plan.input_blocks;
  a.stage_bytes = plan.stage_bytes;
  a.ring_stages = plan.ring_stages;
  a.ring_offset = plan.ring_offset;
  CHECK(plan.ring_stages >= 2);
  CHECK(plan.slices == 1 || static_cast<int64_t>(plan.row_blocks) * plan.column_tiles * 4 <= kGemmCounterBytes);

  const std::string what = "product of " + std::to_string(rows) + " rows, [" + std::to_string(w.shape.groups) + " x " +
                           std::to_string(w.shape.rows) + ", " + std::to_string(w.shape.in) + "]";
  const int64_t width = args.x_group * (w.shape.groups - 1) + w.shape.in;
  TRY_ASSIGN(const CUtensorMap x, bf16_tensor_map(args.x, args.rows, width, args.x_stride, plan.tile_rows, what));
  const KernelChoice k = kernel_of(tile, gpu.wgmma);
  TRY(cuda_status(cudaFuncSetAttribute(k.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes),
                  what));
  TRY(cuda_status(
      cudaFuncSetAttribute(k.kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
      what));
  return cuda_status(
      launch_after(k.kernel, dim3(static_cast<unsigned>(plan.grid)), k.threads, plan.shared_bytes, stream, a, x), what);
}

}  // namespace

int64_t gemm_workspace_bytes(const GemmShape& shape, int32_t max_rows) {
  const int64_t slices = gemm_slices(shape), rows = round_up(std::min(max_rows, kMaxGemmRows), 64);
  const int64_t outputs = static_cast<int64_t>(shape.groups) * gemm_group_blocks(shape) * kGemmBlockRows;
  return kGemmCounterBytes + (slices == 1 ? 0 : slices * outputs * rows * static_cast<int64_t>(sizeof(float)));
}

Status init_gemm_workspace(void* workspace, cudaStream_t stream) {
  return cuda_status(cudaMemsetAsync(workspace, 0, kGemmCounterBytes, stream), "clearing the products' counters");
}

Status run_gemm(const GemmWeights& weights, const Gpu& gpu, const GemmArgs& args, cudaStream_t stream) {
  CHECK(args.x_stride % 8 == 0 && args.x_group % 8 == 0);
  for (int32_t first = 0; first < args.rows; first += kMaxGemmRows)
    TRY(launch_rows(weights, gpu, args, first, std::min(kMaxGemmRows, args.rows - first), stream));
  return {};
}

}  // namespace ddtree::cuda
