// What:    rows of a bf16 matrix → packed blocks (layout.h)
// Mapping: a thread takes eight consecutive K of one row; CTAs walk them all
// Bound:   bytes, read and written once
#include <algorithm>
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/gemm/layout.h"
#include "backend/cuda/ptx.cuh"
#include "base/check.h"

namespace ddtree::cuda {
namespace {

constexpr int kPackThreads = 256;

struct PackArgs {
  const uint16_t* source;
  int64_t row_stride, in_stride;
  uint8_t* packed;
  int64_t first;  // packed row of source row 0
  int32_t step, rows, k_blocks;
};

__global__ void __launch_bounds__(kPackThreads) pack_rows_kernel(const PackArgs a) {
  const int64_t per_row = static_cast<int64_t>(a.k_blocks) * (kGemmBlockK / 8), all = a.rows * per_row;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kPackThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPackThreads + threadIdx.x; i < all; i += threads) {
    const int64_t row = i / per_row, k = i % per_row * 8;
    const uint16_t* from = a.source + row * a.row_stride + k * a.in_stride;
    for (int pair = 0; pair < 8; pair += 2) {
      const uint32_t lo = from[pair * a.in_stride], hi = from[(pair + 1) * a.in_stride];
      *reinterpret_cast<uint32_t*>(a.packed + gemm_offset(a.first + row * a.step, k + pair, a.k_blocks)) =
          lo | hi << 16;
    }
  }
}

}  // namespace

Status clear_gemm(const GemmShape& shape, void* packed, cudaStream_t stream) {
  return cuda_status(cudaMemsetAsync(packed, 0, static_cast<size_t>(gemm_bytes(shape)), stream), "clearing weights");
}

Status pack_gemm(const GemmShape& shape, void* packed, int32_t group, int32_t first, int32_t step,
                 const GemmSource& source, cudaStream_t stream) {
  CHECK(group < shape.groups && first + static_cast<int64_t>(source.rows - 1) * step < shape.rows);
  if (source.rows == 0) return {};
  const int32_t k_blocks = shape.in / kGemmBlockK;
  const int64_t first_row = static_cast<int64_t>(group) * gemm_group_blocks(shape) * kGemmBlockRows + first;
  const PackArgs a{static_cast<const uint16_t*>(source.data),
                   source.row_stride,
                   source.in_stride,
                   static_cast<uint8_t*>(packed),
                   first_row,
                   step,
                   source.rows,
                   k_blocks};
  const int64_t items = static_cast<int64_t>(source.rows) * k_blocks * (kGemmBlockK / 8);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(4096, (items + kPackThreads - 1) / kPackThreads));
  pack_rows_kernel<<<blocks, kPackThreads, 0, stream>>>(a);
  return cuda_status(cudaGetLastError(), "packing " + std::to_string(source.rows) + " rows of weights");
}

}  // namespace ddtree::cuda
