// What:    activations → scores of all experts → each row's top_k experts and their weights
// Shapes:  x [rows, hidden] bf16, logits [rows, experts] float32 → ids, weights [rows, top_k]
// Mapping: a product of the gemm folder, then one warp a row: lane l owns experts l, l + 32, …
// Bound:   the product's bytes; the choice is latency, about 100 cycles an expert chosen
// Limits:  kMaxExperts, kMaxTopK of plan.h
#include "backend/cuda/moe/router.h"

#include <algorithm>
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/math.cuh"
#include "backend/cuda/moe/plan.h"
#include "backend/cuda/ptx.cuh"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPerLane = kMaxExperts / 32;
constexpr int kSplitThreads = 256;

// A float32 weight as a sum of bf16 values, the largest first; what each leaves is exact.
__global__ void __launch_bounds__(kSplitThreads) split_kernel(const float* weights, bf16* parts, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kSplitThreads + threadIdx.x;
  if (i >= count) return;
  float rest = weights[i];
  for (int part = 0; part < 3; ++part) {
    const bf16 value = __float2bfloat16_rn(rest);
    parts[part * count + i] = value;
    rest = __fsub_rn(rest, __bfloat162float(value));
  }
}

struct ChooseArgs {
  const float* logits;  // [rows, parts · experts]
  const float* bias;
  int32_t* ids;
  float* weights;
  const int32_t* live_rows;
  float scale;
  int32_t rows, experts, parts, top_k, groups, top_groups;
  bool softmax, normalise, group_by_top2;
};

__device__ uint64_t largest_of(uint64_t key) {
  const uint32_t high = __reduce_max_sync(~0u, static_cast<uint32_t>(key >> 32));
  const uint32_t low = high == static_cast<uint32_t>(key >> 32) ? static_cast<uint32_t>(key) : 0;
  return static_cast<uint64_t>(high) << 32 | __reduce_max_sync(~0u, low);
}
__device__ int index_of(uint64_t key) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key)); }

__device__ void scores_of(const ChooseArgs& a, int row, int lane, float (&score)[kPerLane]) {
  const float* logits = a.logits + static_cast<int64_t>(row) * a.parts * a.experts;
  float largest = -__int_as_float(0x7f800000);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    score[i] = e < a.experts ? logits[e] : 0.f;
    if (e < a.experts && a.parts == 3)
      score[i] = __fadd_rn(score[i], __fadd_rn(logits[a.experts + e], logits[2 * a.experts + e]));
    if (e < a.experts) largest = fmaxf(largest, score[i]);
  }
  if (!a.softmax) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) score[i] = __fdiv_rn(1.f, __fadd_rn(1.f, expf(-score[i])));
    return;
  }
  largest = warp_max(largest);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const bool mine = lane + 32 * i < a.experts;
    score[i] = mine ? expf(__fsub_rn(score[i], largest)) : 0.f;
    sum = __fadd_rn(sum, score[i]);
  }
  sum = warp_sum(sum);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) score[i] = __fdiv_rn(score[i], sum);
}

// Takes the experts of all but the best groups out of the contest. keys of a warp: [experts].
__device__ void keep_best_groups(const ChooseArgs& a, int lane, const uint64_t* keys, uint64_t (&key)[kPerLane]) {
  const int per_group = a.experts / a.groups;
  uint64_t group_key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int g = lane + 32 * i;
    group_key[i] = 0;
    if (g >= a.groups) continue;
    uint64_t best = 0, second = 0;
    for (int e = g * per_group; e < (g + 1) * per_group; ++e) {
      const uint64_t other = keys[e];
      second = other > best ? best : max(second, other);
      best = max(best, other);
    }
    float score = rank_value(static_cast<uint32_t>(best >> 32));
    if (a.group_by_top2 && per_group > 1) score = __fadd_rn(score, rank_value(static_cast<uint32_t>(second >> 32)));
    group_key[i] = rank_key(score, static_cast<uint32_t>(g));
  }
  uint32_t chosen[kPerLane] = {};  // bit e of [i]: of this lane's experts, one a group
  for (int n = 0; n < a.top_groups; ++n) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, group_key[i]);
    best = largest_of(best);
    const int group = index_of(best);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (group_key[i] == best) group_key[i] = 0;
      if ((lane + 32 * i) / per_group == group) chosen[i] = 1;
    }
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i)
    if (chosen[i] == 0) key[i] = 0;
}

__global__ void __launch_bounds__(kWarps * 32) choose_kernel(const ChooseArgs a) {
  __shared__ uint64_t keys[kWarps][kMaxExperts];
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.x * kWarps + warp;
  if (row >= a.rows) return;
  int32_t* ids = a.ids + static_cast<int64_t>(row) * a.top_k;
  float* weights = a.weights + static_cast<int64_t>(row) * a.top_k;
  if (a.live_rows != nullptr && row >= *a.live_rows) {
    if (lane < a.top_k) ids[lane] = -1, weights[lane] = 0.f;
    return;
  }
  float score[kPerLane];
  scores_of(a, row, lane, score);
  uint64_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = lane + 32 * i;
    key[i] = 0;
    if (e >= a.experts) continue;
    key[i] = rank_key(a.bias == nullptr ? score[i] : __fadd_rn(score[i], a.bias[e]), static_cast<uint32_t>(e));
    keys[warp][e] = key[i];
  }
  __syncwarp();
  if (a.top_groups < a.groups) keep_best_groups(a, lane, keys[warp], key);

  int mine = -1;  // lane n holds the n-th choice
  float my_score = 0, sum = 1e-20f;
  for (int n = 0; n < a.top_k; ++n) {
    uint64_t best = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) best = max(best, key[i]);
    best = largest_of(best);
    const int id = index_of(best);
    float held = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (key[i] == best) held = score[i], key[i] = 0;
    held = __shfl_sync(~0u, held, id % 32);
    sum = __fadd_rn(sum, held);
    if (lane == n) mine = id, my_score = held;
  }
  int place = 0;  // ascending
  for (int n = 0; n < a.top_k; ++n) place += __shfl_sync(~0u, mine, n) < mine;
  if (lane >= a.top_k) return;
  ids[place] = mine;
  weights[place] = __fmul_rn(a.normalise ? __fdiv_rn(my_score, sum) : my_score, a.scale);
}

int32_t parts_of(const RouterShape& shape) { return shape.wide ? 3 : 1; }

Error bad(const char* field, int64_t value, int64_t limit) {
  return {Code::kUnsupported, std::string("router on the GPU: ") + std::to_string(value) + " " + field + "; 1 to " +
                                  std::to_string(limit) + " are possible"};
}

}  // namespace

Status check_router_shape(const RouterShape& shape) {
  const MoeRouting& r = shape.routing;
  if (shape.experts < 1 || shape.experts > kMaxExperts) return bad("experts", shape.experts, kMaxExperts);
  if (r.groups < 1 || r.groups > shape.experts || shape.experts % r.groups != 0)
    return Error{Code::kUnsupported, "router on the GPU: " + std::to_string(shape.experts) +
                                         " experts do not divide into " + std::to_string(r.groups) + " groups"};
  if (r.top_groups < 1 || r.top_groups > r.groups) return bad("groups a row", r.top_groups, r.groups);
  const int32_t most = std::min(kMaxTopK, shape.experts / r.groups * r.top_groups);
  if (r.top_k < 1 || r.top_k > most) return bad("experts a row", r.top_k, most);
  return check_gemm_shape(router_gemm(shape), "router");
}

GemmShape router_gemm(const RouterShape& shape) { return {1, parts_of(shape) * shape.experts, shape.hidden}; }

int64_t router_scratch_bytes(const RouterShape& shape) {
  return shape.wide ? 3 * static_cast<int64_t>(shape.experts) * shape.hidden * 2 : 0;
}

Status pack_router(const RouterShape& shape, const void* weights, void* packed, void* scratch, cudaStream_t stream) {
  const GemmShape gemm = router_gemm(shape);
  const void* source = weights;
  if (shape.wide) {
    const int64_t count = static_cast<int64_t>(shape.experts) * shape.hidden;
    split_kernel<<<static_cast<unsigned>(ceil_div(count, kSplitThreads)), kSplitThreads, 0, stream>>>(
        static_cast<const float*>(weights), static_cast<bf16*>(scratch), count);
    TRY(cuda_status(cudaGetLastError(), "splitting the router's weights"));
    source = scratch;
  }
  TRY(clear_gemm(gemm, packed, stream));
  return pack_gemm(gemm, packed, 0, 0, 1, {source, shape.hidden, 1, gemm.rows}, stream);
}

int64_t router_workspace_bytes(const RouterShape& shape, int32_t max_rows) {
  const GemmShape gemm = router_gemm(shape);
  return round_up(gemm_workspace_bytes(gemm, max_rows), 256) + static_cast<int64_t>(max_rows) * gemm.rows * 4;
}

Status run_router(const RouterShape& shape, const Gpu& gpu, const RouterArgs& args, cudaStream_t stream) {
  if (args.rows == 0) return {};
  const GemmShape gemm = router_gemm(shape);
  auto* logits = reinterpret_cast<float*>(static_cast<uint8_t*>(args.workspace) +
                                          round_up(gemm_workspace_bytes(gemm, args.rows), 256));
  GemmArgs product;
  product.x = args.x;
  product.x_stride = shape.hidden;
  product.rows = args.rows;
  product.out = {.store = GemmStore::kF32, .data = logits, .row_stride = gemm.rows};
  product.workspace = args.workspace;
  TRY(run_gemm({gemm, args.packed}, gpu, product, stream));
  const MoeRouting& r = shape.routing;
  const ChooseArgs choose{logits,
                          args.bias,
                          args.ids,
                          args.weights,
                          args.live_rows,
                          r.scale,
                          args.rows,
                          shape.experts,
                          parts_of(shape),
                          r.top_k,
                          r.groups,
                          r.top_groups,
                          r.score == MoeRouting::Score::kSoftmax,
                          r.normalise,
                          r.group_by_top2};
  return cuda_status(launch_after(choose_kernel, dim3(static_cast<unsigned>(ceil_div(args.rows, kWarps))), kWarps * 32,
                                  0, stream, choose),
                     "choosing experts of " + std::to_string(args.rows) + " rows");
}

}  // namespace ddtree::cuda
