// What:    copies rows inside the caches of all layers
// Shapes:  [layers] × [cache_rows, row_bytes], copies [count]
// Mapping: one CTA a layer and range of columns; it holds its columns of all copied rows in shared memory between the
//          reads and the writes, so that rows may be both source and destination
// Bound:   bytes, read and written once
// Limits:  as many copies as 16-byte columns fit into shared memory: 3072 with 48 KB
#include <algorithm>
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/spec/walk.h"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kSharedBytes = 48 << 10;
constexpr int kMaxColumns = 24;  // 16 bytes each

struct CopyKernelArgs {
  CopyRowsArgs copy;
  int32_t columns;  // of a CTA
};

__global__ void __launch_bounds__(kThreads) copy_rows_kernel(const CopyKernelArgs a) {
  extern __shared__ __align__(16) uint8_t staged[];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int row_columns = a.copy.row_bytes / 16, first = static_cast<int>(blockIdx.x) * a.columns;
  const int columns = min(a.columns, row_columns - first), items = a.copy.count * columns;
  uint8_t* cache = static_cast<uint8_t*>(a.copy.caches[blockIdx.y]) + first * 16;
  const auto inside = [&](int32_t row) { return row >= 0 && row < a.copy.cache_rows; };
  for (int i = threadIdx.x; i < items; i += kThreads) {
    const RowCopy copy = a.copy.copies[i / columns];
    if (inside(copy.from) && inside(copy.to))
      copy_16(shared_address(staged + i * 16),
              cache + static_cast<int64_t>(copy.from) * a.copy.row_bytes + i % columns * 16, true);
  }
  copy_wait_all();
  __syncthreads();
  for (int i = threadIdx.x; i < items; i += kThreads) {
    const RowCopy copy = a.copy.copies[i / columns];
    if (inside(copy.from) && inside(copy.to))
      *reinterpret_cast<uint4*>(cache + static_cast<int64_t>(copy.to) * a.copy.row_bytes + i % columns * 16) =
          load_shared_128(shared_address(staged + i * 16));
  }
}

}  // namespace

Status run_copy_rows(const CopyRowsArgs& args, cudaStream_t stream) {
  if (args.count == 0 || args.layers == 0) return {};
  const int32_t columns = std::min(kMaxColumns, kSharedBytes / 16 / args.count);
  if (columns == 0 || args.row_bytes % 16 != 0)
    return Error{Code::kInvalidArgument, "copying " + std::to_string(args.count) + " cache rows of " +
                                             std::to_string(args.row_bytes) + " bytes: at most " +
                                             std::to_string(kSharedBytes / 16) + " rows of a multiple of 16 bytes"};
  const auto parts = static_cast<unsigned>(ceil_div(args.row_bytes / 16, columns));
  const int32_t shared = args.count * std::min(columns, args.row_bytes / 16) * 16;
  return cuda_status(launch_after(copy_rows_kernel, dim3(parts, static_cast<unsigned>(args.layers)), kThreads, shared,
                                  stream, CopyKernelArgs{args, columns}),
                     "copying " + std::to_string(args.count) + " cache rows");
}

}  // namespace ddtree::cuda
