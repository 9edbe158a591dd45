#include "backend/cuda/moe/experts.h"

#include <algorithm>
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/moe/experts_kernel.cuh"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

constexpr int kCombineThreads = 128;  // small enough to wait beside a CTA of the layer
constexpr int kCombineColumns = 256;  // of a warp, 8 of a lane

// out[t] = Σ w · y over the token's slots, ascending expert, then the shared expert's y; and clears the layer's
// counters. A warp takes one row's 256 columns (or fewer: hidden is a multiple of 128); y is not needed after it, so
// its lines never go to memory.
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const ExpertKernelArgs a) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int lane = threadIdx.x % 32, chunks = (a.hidden + kCombineColumns - 1) / kCombineColumns;
  if (blockIdx.x == 0) {
    if (threadIdx.x == 0) *a.claimed = 0;
    for (int i = threadIdx.x; i < a.tiles; i += kCombineThreads) a.ready[i] = 0;
  }
  const int item = blockIdx.x * (kCombineThreads / 32) + threadIdx.x / 32, t = item / chunks;
  if (t >= a.rows) return;
  const int64_t first = static_cast<int64_t>(t) * a.top_k;
  int id = -1, slot = -1;
  float weight = 0.f;
  if (lane < a.top_k) id = a.ids[first + lane], slot = a.slot[first + lane], weight = a.route_weights[first + lane];
  int rank = 0;  // of this lane's expert, ascending
  for (int i = 0; i < a.top_k; ++i) {
    const int other = __shfl_sync(~0u, id, i);
    rank += other < id || (other == id && i < lane);
  }
  const int column = item % chunks * kCombineColumns + lane * 8;
  const bool inside = column < a.hidden;
  float sum[8] = {};
  for (int begin = 0; begin < a.top_k; begin += 8) {
    uint4 v[8];
    float w[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t holder = __ballot_sync(~0u, lane < a.top_k && rank == begin + i);
      const int from = holder ? __ffs(holder) - 1 : 0, s = holder ? __shfl_sync(~0u, slot, from) : -1;
      w[i] = __shfl_sync(~0u, weight, from);
      v[i] = make_uint4(0, 0, 0, 0);
      if (s >= 0 && inside)
        v[i] = *reinterpret_cast<const uint4*>(a.y + static_cast<int64_t>(s) * a.hidden + column);
      else
        w[i] = 0.f;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t words[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sum[2 * k] = fmaf(w[i], __uint_as_float(words[k] << 16), sum[2 * k]);
        sum[2 * k + 1] = fmaf(w[i], __uint_as_float(words[k] & 0xffff0000u), sum[2 * k + 1]);
      }
    }
  }
  if (a.shared != nullptr && inside) {
    const uint4 y = *reinterpret_cast<const uint4*>(a.shared + static_cast<int64_t>(t) * a.hidden + column);
    const uint32_t words[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      sum[2 * k] += __uint_as_float(words[k] << 16);
      sum[2 * k + 1] += __uint_as_float(words[k] & 0xffff0000u);
    }
  }
  if (inside)
    *reinterpret_cast<uint4*>(a.out + static_cast<int64_t>(t) * a.hidden + column) = make_uint4(
        pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7]));
  __syncwarp();
  for (int i = 0; i < a.top_k; ++i) {  // every eighth lane's 128 bytes
    const int s = __shfl_sync(~0u, slot, i);
    if (s >= 0 && inside && lane % 8 == 0) discard_line(a.y + static_cast<int64_t>(s) * a.hidden + column);
  }
}

// Launches so that the kernel may start while the one before it ends; it must call wait_for_previous_kernel().
template <class Kernel, class Args>
cudaError_t launch_chained(Kernel kernel, dim3 grid, int threads, int shared_bytes, cudaStream_t stream,
                           const Args& args) {
  cudaLaunchAttribute chained{};
  chained.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  chained.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &chained;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

using ExpertKernel = void (*)(ExpertKernelArgs);

ExpertKernel kernel_of(ExpertMode mode) {
  switch (mode) {
    case ExpertMode::kSplit32: return experts_kernel<SplitConfig<1>>;
    case ExpertMode::kSplit64: return experts_kernel<SplitConfig<2>>;
    case ExpertMode::kSplit128: return experts_kernel<SplitConfig<4>>;
    case ExpertMode::kWide8: return experts_kernel<WideConfig<1>>;
    case ExpertMode::kWide16: return experts_kernel<WideConfig<2>>;
    case ExpertMode::kWide32: return experts_kernel<WideConfig<4>>;
  }
  return nullptr;
}

struct Workspace {
  int64_t claimed, ready, slot, h, y, bytes;
};

// The counters come first and have the same room whatever the row count: launches of all sizes share them, and find
// them clear only if no other launch's data ever lies there.
Workspace layout_workspace(const ExpertShape& shape, int32_t rows) {
  const int64_t slots = static_cast<int64_t>(rows) * shape.top_k, most = static_cast<int64_t>(kMaxRows) * shape.top_k;
  Workspace w{};
  w.ready = 256;
  w.slot = w.ready + round_up(4 * std::min<int64_t>(most, shape.experts + most / 2), 256);
  w.h = w.slot + round_up(4 * slots, 256);
  w.y = w.h + round_up(2 * slots * shape.inter, 256);
  w.bytes = w.y + round_up(2 * slots * shape.hidden, 256);
  return w;
}

Status run_chunk(const ExpertShape& shape, const ExpertDevice& device, const ExpertsArgs& args, ExpertMode mode,
                 int32_t first, int32_t rows, cudaStream_t stream) {
  const ExpertPlan plan = plan_experts(shape, device, mode, rows);
  const Workspace w = layout_workspace(shape, rows);
  uint8_t* workspace = static_cast<uint8_t*>(args.workspace);
  ExpertKernelArgs a{};
  for (int p = 0; p < 2; ++p) a.phase[p] = plan.phase[p];
  a.weights[0] = static_cast<const uint8_t*>(args.gate_up);
  a.weights[1] = static_cast<const uint8_t*>(args.down);
  a.x = static_cast<const bf16*>(args.x) + static_cast<int64_t>(first) * shape.hidden;
  a.ids = args.ids + static_cast<int64_t>(first) * shape.top_k;
  a.route_weights = args.weights + static_cast<int64_t>(first) * shape.top_k;
  a.out = static_cast<bf16*>(args.out) + static_cast<int64_t>(first) * shape.hidden;
  if (args.shared != nullptr)
    a.shared = static_cast<const bf16*>(args.shared) + static_cast<int64_t>(first) * shape.hidden;
  a.claimed = reinterpret_cast<uint32_t*>(workspace + w.claimed);
  a.ready = reinterpret_cast<uint32_t*>(workspace + w.ready);
  a.slot = reinterpret_cast<int32_t*>(workspace + w.slot);
  a.h = reinterpret_cast<bf16*>(workspace + w.h);
  a.y = reinterpret_cast<bf16*>(workspace + w.y);
  a.rows = rows;
  a.top_k = shape.top_k;
  a.experts = shape.experts;
  a.hidden = shape.hidden;
  a.inter = shape.inter;
  a.top_k_inverse = static_cast<uint32_t>((0x1'0000'0000 + shape.top_k - 1) / shape.top_k);
  a.tiles = tile_bound(shape, rows, plan.tile_tokens);
  a.tiles_offset = plan.tiles_offset;
  a.tokens_offset = plan.tokens_offset;
  a.ring_offset = plan.ring_offset;
  a.ring_stages = plan.ring_stages;

  const std::string what = "experts, " + std::to_string(rows) + " rows, hidden " + std::to_string(shape.hidden) +
                           ", inter " + std::to_string(shape.inter);
  const ExpertKernel kernel = kernel_of(mode);
  TRY(cuda_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes), what));
  TRY(cuda_status(launch_chained(kernel, dim3(device.sms), kExpertThreads, plan.shared_bytes, stream, a), what));
  const int64_t warps = rows * ceil_div(shape.hidden, kCombineColumns);
  const auto blocks = static_cast<unsigned>(ceil_div(warps, kCombineThreads / 32));
  return cuda_status(launch_chained(combine_kernel, dim3(blocks), kCombineThreads, 0, stream, a), "combine of " + what);
}

}  // namespace

Result<ExpertDevice> expert_device() {
  int id = 0, sms = 0, shared = 0, major = 0;
  TRY(cuda_status(cudaGetDevice(&id), "cudaGetDevice"));
  TRY(cuda_status(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, id), "multiprocessor count"));
  TRY(cuda_status(cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, id), "shared memory"));
  TRY(cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id), "compute capability"));
  if (major < 9)
    return Error{Code::kUnsupported, "this GPU has compute capability " + std::to_string(major) +
                                         ".x; the kernels need 9.0 or later (Hopper, Blackwell)"};
  return ExpertDevice{sms, shared, major == 9};
}

int64_t expert_workspace_bytes(const ExpertShape& shape, int32_t max_rows) {
  return layout_workspace(shape, std::min(max_rows, kMaxRows)).bytes;
}

Status init_expert_workspace(const ExpertShape& shape, int32_t max_rows, void* workspace, cudaStream_t stream) {
  const Workspace w = layout_workspace(shape, std::min(max_rows, kMaxRows));
  return cuda_status(cudaMemsetAsync(workspace, 0, static_cast<size_t>(w.slot), stream),
                     "clearing the experts' counters");
}

Status run_experts(const ExpertShape& shape, const ExpertDevice& device, const ExpertsArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return {};
  ExpertMode mode = args.mode ? *args.mode : pick_expert_mode(shape, device, args.rows);
  const int32_t limit = max_launch_rows(shape, device, mode);
  if (limit == 0)
    return Error{Code::kUnsupported, "INT4 experts on the GPU: " + std::to_string(device.shared_bytes) +
                                         " bytes of shared memory don't hold " + std::to_string(shape.experts) +
                                         " experts' lists in this mode"};
  for (int32_t first = 0; first < args.rows; first += limit)
    TRY(run_chunk(shape, device, args, mode, first, std::min(limit, args.rows - first), stream));
  return {};
}

}  // namespace ddtree::cuda
