// What:    per row, from the best key and Σ exp of every 64 ids: the k largest logits in order, and log Σ exp
// Shapes:  best [T, B] u64, sums [T, B] f32, logits [T, V] f32 → top_value, top_id [T, k], lse [T]
// Mapping: one CTA a row. The k-th largest of the B keys bounds the k-th largest logit from below; exactly k of the 64s
//          reach it, and what reaches it inside them is ranked.
// Bound:   latency: two or three rounds of counting by digits, twice
// Seen:    bench/results/h200/head*.json
// Limits:  k ≤ 64
#include "backend/cuda/gemm/head.h"

#include <algorithm>
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/gemm/layout.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/math.cuh"
#include "backend/cuda/ptx.cuh"
#include "base/check.h"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

constexpr int kSelectThreads = 512;
constexpr int kSelectWarps = kSelectThreads / 32;
constexpr int kMaxCandidates = kMaxHeadTop * kGemmBlockRows;

struct SelectArgs {
  const uint64_t* best;
  const float* sums;
  const float* logits;  // of the launch's first row
  int64_t logits_stride;
  float* top_value;
  int32_t* top_id;
  float* lse;
  int32_t blocks, vocabulary, k;
};

struct SelectScratch {
  uint64_t candidates[kMaxCandidates];
  uint64_t chosen[kMaxHeadTop];
  int32_t chosen_blocks[kMaxHeadTop];
  uint64_t differ;
  int32_t bins[256];
  int32_t bin, left;
  float parts[kSelectWarps];
  uint64_t part_keys[kSelectWarps];
  int32_t candidate_count, chosen_count;
};

// One warp: the bin that holds the left-th key from above, and how many keys of it are wanted.
__device__ void find_bin(SelectScratch& scratch, int left) {
  const int lane = threadIdx.x;  // lane l has bins 255 − 8l … 248 − 8l
  int count[8], mine = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) mine += count[i] = scratch.bins[255 - 8 * lane - i];
  int before = mine;
  for (int d = 1; d < 32; d *= 2) {
    const int other = __shfl_up_sync(~0u, before, d);
    if (lane >= d) before += other;
  }
  before -= mine;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (before < left && before + count[i] >= left) {
      scratch.bin = 255 - 8 * lane - i;
      scratch.left = left - before;
    }
    before += count[i];
  }
}

// The largest bound that at least k of n > k different keys reach: the k-th largest key, or a shorter prefix of it that
// tells the same. Digits of eight bits, from the first that tells keys apart.
__device__ uint64_t kth_largest(const uint64_t* keys, int n, int k, SelectScratch& scratch) {
  uint64_t differ = 0;
  for (int i = threadIdx.x; i < n; i += kSelectThreads) differ |= keys[i] ^ keys[0];
  if (threadIdx.x == 0) scratch.differ = 0;
  __syncthreads();
  const uint32_t high = __reduce_or_sync(~0u, static_cast<uint32_t>(differ >> 32));
  const uint32_t low = __reduce_or_sync(~0u, static_cast<uint32_t>(differ));
  if (threadIdx.x % 32 == 0)
    atomicOr(reinterpret_cast<unsigned long long*>(&scratch.differ), uint64_t{high} << 32 | low);
  __syncthreads();
  int shift = 64 - __clzll(static_cast<int64_t>(scratch.differ)), left = k;  // bits below are undecided
  uint64_t bound = shift == 64 ? 0 : keys[0] >> shift << shift;
  while (shift > 0) {
    const int bits = min(8, shift), above = shift;
    shift -= bits;
    for (int i = threadIdx.x; i < 256; i += kSelectThreads) scratch.bins[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += kSelectThreads) {
      const uint64_t key = keys[i];
      if (above == 64 || key >> above == bound >> above) atomicAdd(&scratch.bins[key >> shift & ((1u << bits) - 1)], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) find_bin(scratch, left);
    __syncthreads();
    bound |= static_cast<uint64_t>(scratch.bin) << shift;
    left = scratch.left;
    const bool exact = scratch.bins[scratch.bin] == left;  // every key of the bin is wanted
    __syncthreads();
    if (exact) break;
  }
  return bound;
}

// log Σ exp over all blocks, in one order whatever the batch: a thread's blocks ascending, lanes, then warps.
__device__ float log_sum(const SelectArgs& a, const uint64_t* best, const float* sums, uint64_t top,
                         SelectScratch& scratch) {
  const float largest = rank_value(static_cast<uint32_t>(top >> 32));
  const bool infinite = isinf(largest);  // then only NaN matters
  float sum = 0.f;
  for (int i = threadIdx.x; i < a.blocks; i += kSelectThreads) {
    const float block = rank_value(static_cast<uint32_t>(best[i] >> 32));
    const float scale = infinite || block == largest ? 1.f : expf(__fsub_rn(block, largest));
    sum = __fadd_rn(sum, __fmul_rn(sums[i], scale));
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) scratch.parts[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0.f;
  for (int w = 0; w < kSelectWarps; ++w) sum = __fadd_rn(sum, scratch.parts[w]);
  if (sum != sum) return sum;
  return infinite ? largest : __fadd_rn(largest, logf(sum));
}

__device__ uint64_t largest_key(const uint64_t* keys, int n, SelectScratch& scratch) {
  uint64_t top = 0;
  for (int i = threadIdx.x; i < n; i += kSelectThreads) top = max(top, keys[i]);
  top = warp_max(top);
  if (threadIdx.x % 32 == 0) scratch.part_keys[threadIdx.x / 32] = top;
  __syncthreads();
  for (int w = 0; w < kSelectWarps; ++w) top = max(top, scratch.part_keys[w]);
  return top;
}

__device__ void store_choice(const SelectArgs& a, int64_t row, int rank, uint64_t key) {
  a.top_value[row * a.k + rank] = rank_value(static_cast<uint32_t>(key >> 32));
  a.top_id[row * a.k + rank] = static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(key));
}

// Everything of the chosen blocks that reaches the bound.
__device__ void gather_candidates(const SelectArgs& a, const float* logits, const uint64_t* best, uint64_t bound,
                                  SelectScratch& scratch) {
  for (int i = threadIdx.x; i < a.blocks; i += kSelectThreads)
    if (best[i] >= bound) scratch.chosen_blocks[atomicAdd(&scratch.chosen_count, 1)] = i;
  __syncthreads();
  for (int i = threadIdx.x; i < scratch.chosen_count * kGemmBlockRows; i += kSelectThreads) {
    const int id = scratch.chosen_blocks[i / kGemmBlockRows] * kGemmBlockRows + i % kGemmBlockRows;
    if (id >= a.vocabulary) continue;
    const uint64_t key = rank_key(logits[id], static_cast<uint32_t>(id));
    if (key >= bound) scratch.candidates[atomicAdd(&scratch.candidate_count, 1)] = key;
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kSelectThreads) select_kernel(const __grid_constant__ SelectArgs a) {
  __shared__ SelectScratch scratch;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  const uint64_t* best = a.best + row * a.blocks;
  if (threadIdx.x == 0) scratch.candidate_count = scratch.chosen_count = 0;
  const uint64_t top = largest_key(best, a.blocks, scratch);
  const float lse = log_sum(a, best, a.sums + row * a.blocks, top, scratch);
  if (threadIdx.x == 0) a.lse[row] = lse;
  if (a.k == 1) {
    if (threadIdx.x == 0) store_choice(a, row, 0, top);
    return;
  }
  const uint64_t bound = a.blocks > a.k ? kth_largest(best, a.blocks, a.k, scratch) : 1;
  gather_candidates(a, a.logits + row * a.logits_stride, best, bound, scratch);
  const int n = scratch.candidate_count;
  const uint64_t last = n > a.k ? kth_largest(scratch.candidates, n, a.k, scratch) : 1;
  __syncthreads();
  if (threadIdx.x == 0) scratch.chosen_count = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += kSelectThreads)
    if (scratch.candidates[i] >= last) scratch.chosen[atomicAdd(&scratch.chosen_count, 1)] = scratch.candidates[i];
  __syncthreads();
  if (static_cast<int>(threadIdx.x) >= a.k) return;
  const uint64_t mine = scratch.chosen[threadIdx.x];
  int rank = 0;
  for (int i = 0; i < a.k; ++i) rank += scratch.chosen[i] > mine;
  store_choice(a, row, rank, mine);
}

struct HeadWorkspace {
  int64_t best, sums, logits, bytes;
};

HeadWorkspace layout_head(const GemmShape& shape, int32_t k) {
  const int64_t blocks = gemm_group_blocks(shape);
  HeadWorkspace w{};
  w.best = round_up(gemm_workspace_bytes(shape, kHeadRows), 256);
  w.sums = w.best + round_up(kHeadRows * blocks * 8, 256);
  w.logits = w.sums + round_up(kHeadRows * blocks * 4, 256);
  w.bytes = w.logits + (k == 1 ? 0 : int64_t{kHeadRows} * shape.rows * 4);
  return w;
}

}  // namespace

Status check_head(const GemmShape& shape, int32_t k) {
  TRY(check_gemm_shape(shape, "the head"));
  if (k >= 1 && k <= kMaxHeadTop && k <= shape.rows) return {};
  return Error{Code::kUnsupported, "the head on the GPU: the " + std::to_string(k) + " largest of " +
                                       std::to_string(shape.rows) + " logits; 1 to " +
                                       std::to_string(std::min(kMaxHeadTop, shape.rows)) + " are possible"};
}

int64_t head_workspace_bytes(const GemmShape& shape, int32_t k) { return layout_head(shape, k).bytes; }

Status run_head(const Gpu& gpu, const HeadArgs& args, cudaStream_t stream) {
  const GemmShape& shape = args.weights.shape;
  CHECK(shape.groups == 1);
  const HeadWorkspace w = layout_head(shape, args.k);
  uint8_t* workspace = static_cast<uint8_t*>(args.workspace);
  for (int32_t first = 0; first < args.rows; first += kHeadRows) {
    const int32_t rows = std::min(kHeadRows, args.rows - first);
    float* logits = args.logits != nullptr ? args.logits + int64_t{first} * shape.rows
                    : args.k > 1           ? reinterpret_cast<float*>(workspace + w.logits)
                                           : nullptr;
    GemmArgs product;
    product.x = static_cast<const uint16_t*>(args.x) + int64_t{first} * shape.in;
    product.x_stride = shape.in;
    product.rows = rows;
    product.out = {.store = GemmStore::kHead,
                   .data = logits,
                   .row_stride = shape.rows,
                   .best = reinterpret_cast<uint64_t*>(workspace + w.best),
                   .sums = reinterpret_cast<float*>(workspace + w.sums)};
    product.workspace = workspace;
    product.tile = args.tile;
    TRY(run_gemm(args.weights, gpu, product, stream));
    const SelectArgs a{product.out.best,
                       product.out.sums,
                       logits,
                       shape.rows,
                       args.top_value + int64_t{first} * args.k,
                       args.top_id + int64_t{first} * args.k,
                       args.lse + first,
                       gemm_group_blocks(shape),
                       shape.rows,
                       args.k};
    TRY(cuda_status(launch_after(select_kernel, dim3(static_cast<unsigned>(rows)), kSelectThreads, 0, stream, a),
                    "choosing the largest logits of " + std::to_string(rows) + " rows"));
  }
  return {};
}

}  // namespace ddtree::cuda
