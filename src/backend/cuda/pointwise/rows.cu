// What:    norms, sums and copies of rows
// Mapping: norms: one CTA a row, which stays in registers; the others: eight values a thread
// Bound:   latency; every value read and written once
// Limits:  width % 8, width ≤ 16384
#include "backend/cuda/pointwise/rows.h"

#include <algorithm>
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/gemm/layout.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/math.cuh"
#include "backend/cuda/pointwise/block_sum.cuh"
#include "backend/cuda/ptx.cuh"
#include "base/check.h"

namespace ddtree::cuda {
namespace {

constexpr int kRowThreads = 512;
constexpr int kHeld = 4;  // vectors of a thread
constexpr int32_t kMaxWidth = kRowThreads * kHeld * 8;
constexpr int kCopyThreads = 256;

struct NormArgs {
  uint4* out;
  const uint4* x;   // the delta where there is a residual
  uint4* residual;  // or null
  const float4* gain;
  int32_t vectors;  // of a row
  float width, eps;
};

__device__ inline uint32_t add_pair(uint32_t a, uint32_t b) {
  const float2 x = unpack_bf16_pair(a), y = unpack_bf16_pair(b);
  return pack_bf16_pair(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y));
}
__device__ inline uint4 add_vectors(const uint4& a, const uint4& b) {
  return make_uint4(add_pair(a.x, b.x), add_pair(a.y, b.y), add_pair(a.z, b.z), add_pair(a.w, b.w));
}
__device__ inline float add_squares(float sum, uint32_t pair) {
  const float2 v = unpack_bf16_pair(pair);
  return __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, sum));
}
__device__ inline uint32_t scale_pair(uint32_t pair, float factor, float gain0, float gain1) {
  const float2 v = unpack_bf16_pair(pair);
  return pack_bf16_pair(__fmul_rn(__fmul_rn(v.x, factor), gain0), __fmul_rn(__fmul_rn(v.y, factor), gain1));
}

__global__ void __launch_bounds__(kRowThreads) norm_kernel(const NormArgs a) {
  __shared__ float parts[kRowThreads / 32];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t row = static_cast<int64_t>(blockIdx.x) * a.vectors;
  uint4 held[kHeld];
  float sum = 0.f;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * kRowThreads;
    if (i >= a.vectors) break;
    held[j] = a.x[row + i];
    if (a.residual != nullptr) a.residual[row + i] = held[j] = add_vectors(a.residual[row + i], held[j]);
    sum = add_squares(add_squares(add_squares(add_squares(sum, held[j].x), held[j].y), held[j].z), held[j].w);
  }
  const float factor = norm_factor(block_sum<kRowThreads>(sum, parts), a.width, a.eps);
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = threadIdx.x + j * kRowThreads;
    if (i >= a.vectors) break;
    const float4 g = a.gain[2 * i], h = a.gain[2 * i + 1];
    a.out[row + i] = make_uint4(scale_pair(held[j].x, factor, g.x, g.y), scale_pair(held[j].y, factor, g.z, g.w),
                                scale_pair(held[j].z, factor, h.x, h.y), scale_pair(held[j].w, factor, h.z, h.w));
  }
}

__global__ void __launch_bounds__(kCopyThreads) add_kernel(uint4* residual, const uint4* delta, int64_t vectors) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (i < vectors) residual[i] = add_vectors(residual[i], delta[i]);
}

__global__ void __launch_bounds__(kCopyThreads)
    gather_kernel(uint4* out, const uint4* x, const int32_t* rows, int32_t vectors, int64_t all) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (i < all) out[i] = x[rows[i / vectors] * static_cast<int64_t>(vectors) + i % vectors];
}

__global__ void __launch_bounds__(kCopyThreads) embed_kernel(uint32_t* out, const uint8_t* table, const int32_t* token,
                                                             int32_t pairs, int32_t tokens, int64_t all) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kCopyThreads + threadIdx.x;
  if (i >= all) return;
  const int32_t id = token[i / pairs];
  const int64_t k = i % pairs * 2, k_blocks = pairs * 2 / kGemmBlockK;
  out[i] = id >= 0 && id < tokens ? *reinterpret_cast<const uint32_t*>(table + gemm_offset(id, k, k_blocks)) : 0;
}

dim3 grid_of(int64_t items) { return dim3(static_cast<unsigned>((items + kCopyThreads - 1) / kCopyThreads)); }

Status launch_norm(const RowShape& shape, const NormArgs& args, cudaStream_t stream) {
  if (shape.rows == 0) return {};
  CHECK(shape.width % 8 == 0 && shape.width <= kMaxWidth);
  return cuda_status(launch_after(norm_kernel, dim3(static_cast<unsigned>(shape.rows)), kRowThreads, 0, stream, args),
                     "norm of " + std::to_string(shape.rows) + " rows of " + std::to_string(shape.width));
}

}  // namespace

Status check_row_width(int32_t width, const char* what) {
  if (width >= 8 && width % 8 == 0 && width <= kMaxWidth) return {};
  return Error{Code::kUnsupported, std::string(what) + " on the GPU: rows of " + std::to_string(width) +
                                       " values; a multiple of 8 up to " + std::to_string(kMaxWidth) + " is possible"};
}

Status run_rms_norm(const RowShape& shape, void* out, const void* x, const float* gain, float eps,
                    cudaStream_t stream) {
  return launch_norm(shape,
                     {static_cast<uint4*>(out), static_cast<const uint4*>(x), nullptr,
                      reinterpret_cast<const float4*>(gain), shape.width / 8, static_cast<float>(shape.width), eps},
                     stream);
}

Status run_add_rms_norm(const RowShape& shape, void* out, void* residual, const void* delta, const float* gain,
                        float eps, cudaStream_t stream) {
  return launch_norm(shape,
                     {static_cast<uint4*>(out), static_cast<const uint4*>(delta), static_cast<uint4*>(residual),
                      reinterpret_cast<const float4*>(gain), shape.width / 8, static_cast<float>(shape.width), eps},
                     stream);
}

Status run_add(const RowShape& shape, void* residual, const void* delta, cudaStream_t stream) {
  const int64_t vectors = static_cast<int64_t>(shape.rows) * (shape.width / 8);
  if (vectors == 0) return {};
  return cuda_status(launch_after(add_kernel, grid_of(vectors), kCopyThreads, 0, stream, static_cast<uint4*>(residual),
                                  static_cast<const uint4*>(delta), vectors),
                     "sum of " + std::to_string(shape.rows) + " rows");
}

Status run_gather_rows(const RowShape& shape, void* out, const void* x, const int32_t* rows, cudaStream_t stream) {
  const int32_t vectors = shape.width / 8;
  const int64_t all = static_cast<int64_t>(shape.rows) * vectors;
  if (all == 0) return {};
  return cuda_status(launch_after(gather_kernel, grid_of(all), kCopyThreads, 0, stream, static_cast<uint4*>(out),
                                  static_cast<const uint4*>(x), rows, vectors, all),
                     "gathering " + std::to_string(shape.rows) + " rows");
}

Status run_embed(int32_t rows, void* out, const GemmWeights& table, const int32_t* token, cudaStream_t stream) {
  CHECK(table.shape.groups == 1);
  const int32_t pairs = table.shape.in / 2;
  const int64_t all = static_cast<int64_t>(rows) * pairs;
  if (all == 0) return {};
  return cuda_status(launch_after(embed_kernel, grid_of(all), kCopyThreads, 0, stream, static_cast<uint32_t*>(out),
                                  static_cast<const uint8_t*>(table.data), token, pairs, table.shape.rows, all),
                     "embedding " + std::to_string(rows) + " rows");
}

}  // namespace ddtree::cuda
