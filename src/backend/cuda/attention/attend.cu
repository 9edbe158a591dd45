#include "backend/cuda/attention/attend.h"

#include <algorithm>
#include <string>

#include "backend/cuda/attention/attend_mma.cuh"
#include "backend/cuda/attention/attend_wgmma.cuh"
#include "backend/cuda/cuda_status.h"
#include "backend/cuda/gpu.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/tensor_map.h"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

constexpr int kFoldStep = 8;                            // splits that a thread reads ahead
constexpr int kFoldBatch = 136;                         // splits that meet in shared memory at once, at most
constexpr int64_t kMaxPartialBytes = int64_t{1} << 30;  // beyond it, items take all splits of their tile
constexpr int32_t kLatent = 512, kLatentKey = 576;      // of MLA: kv_lora, kv_lora + rope_dim
constexpr int32_t kSmallestShared = 101376;             // of sm_120

// --- folding the splits of a row ---

// Where a row's partial results lie: split s at (first + s · columns, row of the tile).
struct RowSplits {
  int32_t first = 0, columns = 0, begin = 0, last = 0, tile_row = 0;
};

__device__ bool find_splits(const AttendKernelArgs& a, int row, int head, RowSplits& r) {
  int items = 0;
  for (int s = 0; s < a.segment_count; ++s) {
    const AttendSegment segment = a.segments[s];
    const SegmentWork work = segment_work(segment, a.tiling, a.block, a.whole);
    const int own = row - segment.first_row;
    if (own < 0 || own >= segment.rows) {
      items += work.items();
      continue;
    }
    const int32_t position = a.position[row];
    const int32_t keys = a.block ? segment.context + segment.rows : position + 1, bucket = bucket_of(keys);
    for (int b = work.first_bucket; b < bucket; ++b) items += work.bucket_items(b);
    const Tiling& t = a.tiling;
    const int kv_head = head / t.group, in_group = head % t.group;
    r.first = items + (kv_head * t.head_tiles + in_group / t.head_tile) * t.node_tiles(segment.rows) + own / t.nodes;
    r.columns = work.columns;
    r.begin = a.window == 0 ? 0 : max(0, position - (a.window - 1)) >> split_shift(bucket);
    r.last = (keys - 1) >> split_shift(bucket);
    r.tile_row = own % t.nodes * t.head_tile + in_group % t.head_tile;
    return r.begin < r.last;
  }
  return false;
}

// out = the row's splits, folded in ascending order. A CTA has one (row, head), a thread some of its columns; all loads
// of up to kFoldBatch splits are in flight at once.
template <int V>
struct FoldConfig {
  static constexpr int kPairs = V == 512 ? 2 : V / 64, kThreads = V / (2 * kPairs);
  static constexpr int kFactors = 16, kValues = (kFactors + kFoldBatch * 16 + 127) / 128 * 128;  // in shared memory
};

// Factors (keep, add, weights, unit) of n splits, by a warp; `top` is the maximum before them, then after them.
__device__ inline void fold_factors(float4* factors, const float4* stats, int64_t step, int n, float& top) {
  const int lane = threadIdx.x;
  for (int begin = 0; begin < n; begin += 32) {
    const bool valid = begin + lane < n;
    const float4 stat = valid ? stats[(begin + lane) * step] : make_float4(kNone, 0.f, 0.f, 0.f);
    float upto = fmaxf(top, stat.x);
    for (int d = 1; d < 32; d *= 2) {
      const float below = __shfl_up_sync(~0u, upto, d);
      if (lane >= d) upto = fmaxf(upto, below);
    }
    const float before = __shfl_up_sync(~0u, upto, 1);
    const Fold f = fold_of(lane == 0 ? top : before, stat.x);
    if (valid) factors[begin + lane] = make_float4(f.keep, f.add, stat.y, stat.z);
    top = __shfl_sync(~0u, upto, 31);
  }
}

template <int V>
__global__ void __launch_bounds__(FoldConfig<V>::kThreads) fold_kernel(const AttendKernelArgs a) {
  using C = FoldConfig<V>;
  extern __shared__ __align__(128) uint8_t smem[];
  float4* factors = reinterpret_cast<float4*>(smem + C::kFactors);
  const uint32_t bar = shared_address(smem), to = shared_address(smem + C::kValues);
  const int index = blockIdx.x;
  RowSplits r;  // what it needs was there before the kernel that we wait for began
  const bool any = find_splits(a, index / a.heads, index % a.heads, r);
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (!any) return;
  const int64_t step = static_cast<int64_t>(r.columns) * a.tile_rows;
  float total[2 * C::kPairs] = {}, top = kNone, weights = 0.f;
  for (int begin = r.begin, phase = 0; begin <= r.last; begin += a.fold_batch, phase ^= 1) {
    const int n = min(a.fold_batch, r.last + 1 - begin);
    const int64_t first = (r.first + static_cast<int64_t>(begin) * r.columns) * a.tile_rows + r.tile_row;
    if (threadIdx.x == 0) barrier_arrive_expect(bar, n * V * 2);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += C::kThreads)
      bulk_copy(to + i * V * 2, static_cast<const __half*>(a.partial) + (first + i * step) * V, V * 2, bar,
                evict_first_policy());
    if (threadIdx.x < 32) fold_factors(factors, a.stats + first, step, n, top);
    __syncthreads();
    barrier_wait(bar, phase);
    const __half2* value = reinterpret_cast<const __half2*>(smem + C::kValues) + threadIdx.x * C::kPairs;
#pragma unroll 1
    for (int i = 0; i < n; i += kFoldStep) {
      float4 factor[kFoldStep];
      float2 v[kFoldStep][C::kPairs];
#pragma unroll
      for (int k = 0; k < kFoldStep; ++k) {
        factor[k] = factors[i + k];
#pragma unroll
        for (int p = 0; p < C::kPairs; ++p) v[k][p] = __half22float2(value[(i + k) * V / 2 + p]);
      }
#pragma unroll
      for (int k = 0; k < kFoldStep; ++k) {
        if (i + k == n) break;
        const Fold f{0.f, factor[k].x, factor[k].y};
        weights = fold(weights, factor[k].z, f);
#pragma unroll
        for (int p = 0; p < C::kPairs; ++p) {
          total[2 * p] = fold(total[2 * p], __fmul_rn(v[k][p].x, factor[k].w), f);
          total[2 * p + 1] = fold(total[2 * p + 1], __fmul_rn(v[k][p].y, factor[k].w), f);
        }
      }
    }
    __syncthreads();
  }
  const float inverse = __frcp_rn(weights);
  bf16* out = a.out + static_cast<int64_t>(index) * V;
#pragma unroll
  for (int p = 0; p < C::kPairs; ++p)
    *reinterpret_cast<uint32_t*>(out + partial_column((threadIdx.x * C::kPairs + p) * 2)) =
        pack_bf16_pair(__fmul_rn(total[2 * p], inverse), __fmul_rn(total[2 * p + 1], inverse));
}

// --- variants ---

using MlaTall = AttendConfig<kLatentKey, kLatent, 0, 4>;
using MlaShort = AttendConfig<kLatentKey, kLatent, 0, 1>;
using Gqa128 = AttendConfig<128, 128, 128, 4>;
using Gqa64 = AttendConfig<64, 64, 64, 4>;

using AttendKernel = void (*)(AttendKernelArgs);

struct Variant {
  AttendKernel kernel, fold;                                                          // no kernel: wgmma
  int32_t tile_rows, v_dim, stages, shared_bytes, fold_threads, fold_base, fold_row;  // fold_…: bytes of shared memory
};

template <class C>
Variant variant_of(int32_t shared_bytes) {
  using F = FoldConfig<C::kV>;
  const int32_t stages = C::shared_bytes(2) <= shared_bytes ? 2 : 1;
  return {attend_mma_kernel<C>,    fold_kernel<C::kV>, C::kRows,   C::kV,    stages,
          C::shared_bytes(stages), F::kThreads,        F::kValues, C::kV * 2};
}

bool is_latent(const AttendSpec& spec) { return spec.qk_dim != spec.v_dim; }

Variant pick_variant(const AttendSpec& spec, const AttendDevice& device) {
  if (!is_latent(spec))
    return spec.v_dim == 128 ? variant_of<Gqa128>(device.shared_bytes) : variant_of<Gqa64>(device.shared_bytes);
  if (MlaTall::shared_bytes(2) > device.shared_bytes) return variant_of<MlaShort>(device.shared_bytes);
  Variant v = variant_of<MlaTall>(device.shared_bytes);
  if (device.wgmma && kWgmmaShared <= device.shared_bytes) {
    v.kernel = nullptr;
    v.shared_bytes = kWgmmaShared;
  }
  return v;
}

Status launch_wgmma(const AttendArgs& args, const AttendKernelArgs& a, const AttendPlan& plan, const std::string& what,
                    cudaStream_t stream) {
  TRY_ASSIGN(const CUtensorMap map,
             bf16_tensor_map(args.cache, args.cache_rows, a.width, a.width, kChunkKeys, "attention's cache"));
  const dim3 grid(static_cast<unsigned>(round_up(plan.items, 2)));  // clusters of two
  TRY(cuda_status(cudaFuncSetAttribute(attend_wgmma_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kWgmmaShared),
                  what));
  return cuda_status(launch_after(attend_wgmma_kernel, grid, kWgmmaThreads, kWgmmaShared, stream, a, map), what);
}

Status launch_mma(const Variant& v, const AttendKernelArgs& a, const AttendPlan& plan, const std::string& what,
                  cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(plan.items));
  TRY(cuda_status(cudaFuncSetAttribute(v.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes),
                  what));
  return cuda_status(launch_after(v.kernel, grid, kAttendThreads, plan.shared_bytes, stream, a), what);
}

int32_t most_splits(const AttendSegment& s, const Tiling& tiling, bool block) {
  const SegmentWork work = segment_work(s, tiling, block, false);
  int32_t n = 0;
  for (int32_t b = work.first_bucket; b <= work.last_bucket; ++b) n = std::max(n, work.splits(b));
  return n;
}

int64_t partial_bytes(const AttendPlan& plan, const Variant& v) {
  return round_up(int64_t{plan.items} * v.tile_rows * v.v_dim * (plan.whole ? 4 : 2), 256);
}
int64_t stats_bytes(const AttendPlan& plan, const Variant& v) {
  return int64_t{plan.items} * v.tile_rows * (plan.whole ? kAttendWarps : 1) * static_cast<int64_t>(sizeof(float4));
}

}  // namespace

Result<AttendDevice> attend_device() {
  TRY_ASSIGN(const Gpu gpu, current_gpu());
  int id = 0, major = 0;
  TRY(cuda_status(cudaGetDevice(&id), "cudaGetDevice"));
  TRY(cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id), "compute capability"));
  return AttendDevice{gpu.sms, gpu.shared_bytes, major == 9};
}

Status check_attend_spec(const AttendSpec& spec, const AttendDevice& device) {
  const bool latent = spec.kv_heads == 1 && spec.qk_dim == kLatentKey && spec.v_dim == kLatent && spec.window == 0;
  const bool grouped = spec.qk_dim == spec.v_dim && (spec.qk_dim == 64 || spec.qk_dim == 128);
  const std::string what = "attention on the GPU: ";
  if (!latent && !grouped)
    return Error{Code::kUnsupported,
                 what + "qk_dim " + std::to_string(spec.qk_dim) + ", v_dim " + std::to_string(spec.v_dim) +
                     ", kv_heads " + std::to_string(spec.kv_heads) + ", window " + std::to_string(spec.window) +
                     "; supported are MLA with kv_lora 512 + rope 64 and no window, and GQA with heads of 64 or 128"};
  if (spec.heads < 1 || spec.kv_heads < 1 || spec.heads % spec.kv_heads != 0)
    return Error{Code::kInvalidArgument, what + std::to_string(spec.heads) + " heads, " +
                                             std::to_string(spec.kv_heads) +
                                             " key heads; the former must be a positive multiple of the latter"};
  if (!(spec.scale > 0) || spec.window < 0)
    return Error{Code::kInvalidArgument, what + "scale " + std::to_string(spec.scale) + ", window " +
                                             std::to_string(spec.window) + "; must be > 0 and >= 0"};
  if (device.shared_bytes < kSmallestShared)
    return Error{Code::kUnsupported, what + std::to_string(device.shared_bytes) +
                                         " bytes of shared memory a CTA; needs " + std::to_string(kSmallestShared)};
  return {};
}

AttendPlan plan_attend(const AttendSpec& spec, const AttendDevice& device, std::span<const AttendSegment> segments,
                       bool force_whole) {
  const Variant v = pick_variant(spec, device);
  const bool block = spec.mask == AttendSpec::Mask::kBlock;
  AttendPlan plan;
  plan.device = device;
  plan.tiling = make_tiling(spec.heads, spec.kv_heads, v.tile_rows);
  plan.stages = v.stages;
  plan.shared_bytes = v.shared_bytes;
  int64_t split_items = 0, whole_items = 0;
  int32_t splits = 1;
  for (const AttendSegment& s : segments) {
    split_items += segment_work(s, plan.tiling, block, false).items();
    whole_items += segment_work(s, plan.tiling, block, true).items();
    splits = std::max(splits, most_splits(s, plan.tiling, block));
  }
  // In steps of what a thread reads ahead.
  splits = std::min({splits, kFoldBatch, (device.shared_bytes - v.fold_base) / v.fold_row / kFoldStep * kFoldStep});
  plan.fold_splits = div_up(splits, kFoldStep) * kFoldStep;
  const int64_t item_bytes = int64_t{v.tile_rows} * v.v_dim * 2;
  plan.whole = force_whole || whole_items >= 2 * device.sms || split_items * item_bytes > kMaxPartialBytes;
  plan.items = static_cast<int32_t>(plan.whole ? whole_items : split_items);
  plan.workspace_bytes = partial_bytes(plan, v) + round_up(stats_bytes(plan, v), 256);
  return plan;
}

Status run_attend(const AttendSpec& spec, const AttendPlan& plan, const AttendArgs& args, cudaStream_t stream) {
  if (plan.items == 0) return {};
  const Variant v = pick_variant(spec, plan.device);
  AttendKernelArgs a{};
  a.q = static_cast<const bf16*>(args.q);
  a.cache = static_cast<const bf16*>(args.cache);
  a.out = static_cast<bf16*>(args.out);
  a.position = args.position;
  a.kv_row = args.kv_row;
  a.ancestors = reinterpret_cast<const uint64_t*>(args.ancestors);
  a.segments = args.segments;
  a.pages = args.pages;
  a.partial = args.workspace;
  a.stats = reinterpret_cast<float4*>(static_cast<uint8_t*>(args.workspace) + partial_bytes(plan, v));
  a.tiling = plan.tiling;
  a.segment_count = args.segment_count;
  a.rows = args.rows;
  a.heads = spec.heads;
  a.kv_heads = spec.kv_heads;
  a.width = is_latent(spec) ? spec.qk_dim : spec.kv_heads * (spec.qk_dim + spec.v_dim);
  a.window = spec.window;
  a.tile_rows = v.tile_rows;
  a.stages = plan.stages;
  a.block = spec.mask == AttendSpec::Mask::kBlock;
  a.whole = plan.whole;
  a.fold_batch = plan.fold_splits;
  a.scale_log2 = spec.scale * 1.44269504f;

  const std::string what = "attention, " + std::to_string(args.rows) + " rows, " + std::to_string(spec.heads) +
                           " heads, " + std::to_string(plan.items) + " items";
  TRY(v.kernel == nullptr ? launch_wgmma(args, a, plan, what, stream) : launch_mma(v, a, plan, what, stream));
  if (plan.whole) return {};
  const int64_t blocks = int64_t{args.rows} * spec.heads;
  const int32_t fold_shared = v.fold_base + plan.fold_splits * v.fold_row;
  TRY(cuda_status(cudaFuncSetAttribute(v.fold, cudaFuncAttributeMaxDynamicSharedMemorySize, fold_shared), what));
  // The multiprocessors keep the partition that the kernel before and the next one need.
  TRY(cuda_status(cudaFuncSetAttribute(v.fold, cudaFuncAttributePreferredSharedMemoryCarveout, 100), what));
  return cuda_status(launch_after(v.fold, dim3(static_cast<unsigned>(blocks)), v.fold_threads, fold_shared, stream, a),
                     "folding of " + what);
}

}  // namespace ddtree::cuda
