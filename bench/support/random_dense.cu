#include "support/random_dense.h"

#include <algorithm>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "base/bf16.h"

namespace ddtree::cuda {
namespace {

__global__ void fill_weights(uint16_t* p, int64_t n, uint64_t seed, int64_t first) {
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += threads)
    p[i] = random_weight(seed, first + i);
}

}  // namespace

Result<Buffer> random_matrix(int64_t rows, int64_t columns, uint64_t seed, cudaStream_t stream) {
  TRY_ASSIGN(Buffer matrix, allocate_device(rows * columns * 2, "a random matrix"));
  fill_weights<<<2048, 256, 0, stream>>>(static_cast<uint16_t*>(matrix.data()), rows * columns, seed, 0);
  TRY(cuda_status(cudaGetLastError(), "filling a random matrix"));
  return Result<Buffer>(std::move(matrix));
}

std::vector<uint16_t> random_host_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  std::vector<uint16_t> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); ++i) values[i] = random_weight(seed, static_cast<int64_t>(i));
  return values;
}

Result<Buffer> random_gemm_weights(const GemmShape& shape, uint64_t seed, cudaStream_t stream) {
  TRY_ASSIGN(Buffer packed, allocate_device(gemm_bytes(shape), "packed weights"));
  TRY(clear_gemm(shape, packed.data(), stream));
  // Some rows at a time, so that the largest matrices don't need twice their room.
  const int32_t piece = std::max<int32_t>(1, std::min<int32_t>(shape.rows, (256 << 20) / shape.in));
  TRY_ASSIGN(const Buffer rows, allocate_device(static_cast<int64_t>(piece) * shape.in * 2, "rows to pack"));
  for (int32_t group = 0; group < shape.groups; ++group)
    for (int32_t first = 0; first < shape.rows; first += piece) {
      const int32_t count = std::min(piece, shape.rows - first);
      const int64_t at = (static_cast<int64_t>(group) * shape.rows + first) * shape.in;
      fill_weights<<<2048, 256, 0, stream>>>(static_cast<uint16_t*>(rows.data()),
                                             static_cast<int64_t>(count) * shape.in, seed, at);
      TRY(pack_gemm(shape, packed.data(), group, first, 1, {rows.data(), shape.in, 1, count}, stream));
    }
  TRY(cuda_status(cudaStreamSynchronize(stream), "packing random weights"));
  return Result<Buffer>(std::move(packed));
}

double random_gemm_output(const GemmShape& shape, uint64_t seed, int32_t group, int32_t output,
                          std::span<const float> x) {
  const int64_t at = (static_cast<int64_t>(group) * shape.rows + output) * shape.in;
  double sum = 0;
  for (int64_t i = 0; i < shape.in; ++i)
    sum +=
        static_cast<double>(bf16_to_f32(random_weight(seed, at + i))) * static_cast<double>(x[static_cast<size_t>(i)]);
  return sum;
}

}  // namespace ddtree::cuda
