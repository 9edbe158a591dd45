#include "backend/cuda/attention/attend.h"

#include <cuda.h>

#include <string>

#include "backend/cuda/attention/attend_mma.cuh"
#include "backend/cuda/attention/attend_wgmma.cuh"
#include "backend/cuda/cuda_status.h"
#include "backend/cuda/gpu.h"
#include "backend/cuda/launch.cuh"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

constexpr int kFoldThreads = 128;
constexpr int kFoldBatch = 8;                           // loads in flight
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
    r.begin = a.window == 0 ? 0 : max(0, position - (a.window - 1)) / split_keys(bucket);
    r.last = (keys - 1) / split_keys(bucket);
    r.tile_row = own % t.nodes * t.head_tile + in_group % t.head_tile;
    return r.begin < r.last;
  }
  return false;
}

// out = the row's splits, folded in ascending order. A thread has four columns of one (row, head).
template <int V>
__global__ void __launch_bounds__(kFoldThreads) fold_kernel(const AttendKernelArgs a) {
  constexpr int kOwners = V / 4;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int index = (blockIdx.x * kFoldThreads + threadIdx.x) / kOwners, column = threadIdx.x % kOwners * 4;
  if (index >= a.rows * a.heads) return;
  RowSplits r;
  if (!find_splits(a, index / a.heads, index % a.heads, r)) return;
  float4 total = make_float4(0.f, 0.f, 0.f, 0.f);
  float top = 0.f, weights = 0.f;
  for (int begin = r.begin; begin <= r.last; begin += kFoldBatch) {
    float4 value[kFoldBatch];
    float2 stat[kFoldBatch];
#pragma unroll
    for (int i = 0; i < kFoldBatch; ++i) {
      const int64_t split = r.first + static_cast<int64_t>(min(begin + i, r.last)) * r.columns;
      const int64_t at = split * a.tile_rows + r.tile_row;
      stat[i] = a.stats[at];
      value[i] = *reinterpret_cast<const float4*>(a.partial + at * V + column);
    }
#pragma unroll
    for (int i = 0; i < kFoldBatch; ++i) {
      if (begin + i > r.last) break;
      if (begin + i == r.begin) {
        total = value[i], top = stat[i].x, weights = stat[i].y;
        continue;
      }
      const Fold f = fold_of(top, stat[i].x);
      top = f.max;
      weights = fold(weights, stat[i].y, f);
      total = make_float4(fold(total.x, value[i].x, f), fold(total.y, value[i].y, f), fold(total.z, value[i].z, f),
                          fold(total.w, value[i].w, f));
    }
  }
  const float inverse = __frcp_rn(weights);
  *reinterpret_cast<uint2*>(a.out + static_cast<int64_t>(index) * V + column) =
      make_uint2(pack_bf16_pair(__fmul_rn(total.x, inverse), __fmul_rn(total.y, inverse)),
                 pack_bf16_pair(__fmul_rn(total.z, inverse), __fmul_rn(total.w, inverse)));
}

// --- variants ---

using MlaTall = AttendConfig<kLatentKey, kLatent, 0, 4>;
using MlaShort = AttendConfig<kLatentKey, kLatent, 0, 1>;
using Gqa128 = AttendConfig<128, 128, 128, 4>;
using Gqa64 = AttendConfig<64, 64, 64, 4>;

using AttendKernel = void (*)(AttendKernelArgs);

struct Variant {
  AttendKernel kernel, fold;  // no kernel: wgmma
  int32_t tile_rows, v_dim, stages, shared_bytes;
};

template <class C>
Variant variant_of(AttendKernel fold, int32_t shared_bytes) {
  const int32_t stages = C::shared_bytes(2) <= shared_bytes ? 2 : 1;
  return {attend_mma_kernel<C>, fold, C::kRows, C::kV, stages, C::shared_bytes(stages)};
}

bool is_latent(const AttendSpec& spec) { return spec.qk_dim != spec.v_dim; }

Variant pick_variant(const AttendSpec& spec, const AttendDevice& device) {
  if (is_latent(spec) && device.wgmma && kWgmmaShared <= device.shared_bytes)
    return {nullptr, fold_kernel<kLatent>, WgmmaConfig::kRows, kLatent, 2, kWgmmaShared};
  if (is_latent(spec))
    return MlaTall::shared_bytes(2) <= device.shared_bytes
               ? variant_of<MlaTall>(fold_kernel<kLatent>, device.shared_bytes)
               : variant_of<MlaShort>(fold_kernel<kLatent>, device.shared_bytes);
  return spec.v_dim == 128 ? variant_of<Gqa128>(fold_kernel<128>, device.shared_bytes)
                           : variant_of<Gqa64>(fold_kernel<64>, device.shared_bytes);
}

// --- the cache as the copy engine sees it: boxes of 64 rows × 64 columns ---

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

Result<EncodeTiled> encode_tiled() {
  static EncodeTiled found = nullptr;
  if (found != nullptr) return found;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  TRY(cuda_status(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result),
                  "cuTensorMapEncodeTiled"));
  if (entry == nullptr || result != cudaDriverEntryPointSuccess)
    return Error{Code::kUnsupported, "the GPU's driver has no cuTensorMapEncodeTiled; it needs to support CUDA 12.0"};
  found = reinterpret_cast<EncodeTiled>(entry);
  return found;
}

Result<CUtensorMap> cache_map(const AttendArgs& args, int32_t width) {
  TRY_ASSIGN(const EncodeTiled encode, encode_tiled());
  CUtensorMap map;
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(args.cache_rows)};
  const cuuint64_t pitch[1] = {static_cast<cuuint64_t>(width) * 2};
  const cuuint32_t box[2] = {64, kChunkKeys}, step[2] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(args.cache), size, pitch,
                                 box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    return Error{Code::kInvalidArgument, "attention: a cache of " + std::to_string(args.cache_rows) + " rows of " +
                                             std::to_string(width) + " values: cuTensorMapEncodeTiled failed with " +
                                             std::to_string(result)};
  return map;
}

Status launch_wgmma(const AttendArgs& args, const AttendKernelArgs& a, const AttendPlan& plan, const std::string& what,
                    cudaStream_t stream) {
  TRY_ASSIGN(const CUtensorMap map, cache_map(args, a.width));
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

int64_t partial_bytes(const AttendPlan& plan, const Variant& v) {
  return round_up(static_cast<int64_t>(plan.items) * v.tile_rows * v.v_dim * 4, 256);
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
  const bool latent = spec.kv_heads == 1 && spec.qk_dim == kLatentKey && spec.v_dim == kLatent;
  const bool grouped = spec.qk_dim == spec.v_dim && (spec.qk_dim == 64 || spec.qk_dim == 128);
  const std::string what = "attention on the GPU: ";
  if (!latent && !grouped)
    return Error{Code::kUnsupported, what + "qk_dim " + std::to_string(spec.qk_dim) + ", v_dim " +
                                         std::to_string(spec.v_dim) + ", kv_heads " + std::to_string(spec.kv_heads) +
                                         "; supported are MLA with kv_lora 512 + rope 64, and heads of 64 or 128"};
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
  for (const AttendSegment& s : segments) {
    split_items += segment_work(s, plan.tiling, block, false).items();
    whole_items += segment_work(s, plan.tiling, block, true).items();
  }
  const int64_t item_bytes = int64_t{v.tile_rows} * v.v_dim * 4;
  plan.whole = force_whole || whole_items >= 2 * device.sms || split_items * item_bytes > kMaxPartialBytes;
  plan.items = static_cast<int32_t>(plan.whole ? whole_items : split_items);
  plan.workspace_bytes =
      partial_bytes(plan, v) + round_up(int64_t{plan.items} * v.tile_rows * static_cast<int64_t>(sizeof(float2)), 256);
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
  a.partial = static_cast<float*>(args.workspace);
  a.stats = reinterpret_cast<float2*>(static_cast<uint8_t*>(args.workspace) + partial_bytes(plan, v));
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
  a.scale_log2 = spec.scale * 1.44269504f;

  const std::string what = "attention, " + std::to_string(args.rows) + " rows, " + std::to_string(spec.heads) +
                           " heads, " + std::to_string(plan.items) + " items";
  TRY(v.kernel == nullptr ? launch_wgmma(args, a, plan, what, stream) : launch_mma(v, a, plan, what, stream));
  if (plan.whole) return {};
  const auto blocks = static_cast<unsigned>(ceil_div(int64_t{args.rows} * spec.heads * (v.v_dim / 4), kFoldThreads));
  return cuda_status(launch_after(v.fold, dim3(blocks), kFoldThreads, 0, stream, a), "folding of " + what);
}

}  // namespace ddtree::cuda
