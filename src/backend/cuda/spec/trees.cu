// What:    a drafter's candidates → best-first trees with their links and ancestor words
// Shapes:  [streams, slots ≤ 16, k ≤ 64] → [streams, 256]
// Mapping: one CTA of 512 threads a stream; tree_search.cuh finds the nodes, then a thread a node writes
// Bound:   latency; 8 KB in and 14 KB out a stream
// Limits:  kMaxNodes, kMaxDepth, kMaxRanks of spec/tree.h
#include "backend/cuda/spec/trees.h"

#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/spec/tree_search.cuh"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

constexpr int kWarps = kTreeThreads / 32;
static_assert(kBins == 4 * kTreeThreads, "raise() gives a thread four bins");

// The thread block of a TreeSearch.
class DeviceBlock {
 public:
  static constexpr int kThreads = kTreeThreads, kLanes = 32;

  template <class F>
  __device__ void each(const F& f) {
    f(static_cast<int>(threadIdx.x));
    __syncthreads();
  }
  __device__ void sync() { __syncthreads(); }
  __device__ void sync_warp() { __syncwarp(); }
  __device__ bool in_first_warp() { return threadIdx.x < 32; }
  __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ static uint32_t add(uint32_t* p, uint32_t v) { return atomicAdd(p, v); }
  __device__ static int add(int* p, int v) { return atomicAdd(p, v); }
  __device__ static void lower(int* p, int v) { atomicMin(p, v); }
  __device__ static void lower_bits(uint32_t* p, uint32_t v) { atomicMin(p, v); }
  __device__ static void lower_all(int* p, int v) {
    v = __reduce_min_sync(~0u, v);
    if (threadIdx.x % 32 == 0) atomicMin(p, v);
  }

  // Prefix sums of the bins, and the bin that holds the wanted-th score if there are as many.
  __device__ void raise(const uint32_t* bins, uint32_t* offset, uint32_t* warp_sum, int wanted, int* limit) {
    const int t = static_cast<int>(threadIdx.x), lane = t % 32;
    const uint4 own = reinterpret_cast<const uint4*>(bins)[t];
    const uint32_t sum = own.x + own.y + own.z + own.w;
    uint32_t before = inclusive(sum, lane);
    if (lane == 31) warp_sum[t / 32] = before;
    __syncthreads();
    const uint32_t warps = inclusive(lane < kWarps ? warp_sum[lane] : 0, lane);
    const uint32_t others = __shfl_sync(~0u, warps, max(t / 32 - 1, 0));
    before += (t >= 32 ? others : 0) - sum;
    const uint32_t counts[4] = {own.x, own.y, own.z, own.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      offset[4 * t + i] = before;
      if (before < static_cast<uint32_t>(wanted) && before + counts[i] >= static_cast<uint32_t>(wanted))
        *limit = 4 * t + i;
      before += counts[i];
    }
    if (t == kTreeThreads - 1) offset[kBins] = before;
    __syncthreads();
  }

  __device__ uint32_t holders_of_largest(uint64_t key) {
    const uint32_t high = static_cast<uint32_t>(key >> 32);
    const bool first = high == __reduce_max_sync(~0u, high);
    const uint32_t low = first ? static_cast<uint32_t>(key) : 0, largest = __reduce_max_sync(~0u, low);
    return __ballot_sync(~0u, first && low == largest);
  }
  __device__ int from_lowest(int v, uint32_t lanes) { return __shfl_sync(~0u, v, __ffs(lanes) - 1); }

 private:
  __device__ static uint32_t inclusive(uint32_t v, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, v, step);
      if (lane >= step) v += other;
    }
    return v;
  }
};

struct BuildArgs {
  DraftTable table;
  const TreeRequest* requests;
  TreeArrays out;
};

// What the nodes' threads exchange before they write.
struct Links {
  int16_t parent[kMaxRows], first_child[kMaxRows], next_sibling[kMaxRows];
};

__device__ void load(const DraftTable& table, const TreeTask& task, int stream, TreeShared& shared) {
  for (int e = threadIdx.x; e < kMaxDepth * kMaxRanks; e += kTreeThreads) {
    const int slot = e / kMaxRanks, rank = e % kMaxRanks;
    if (slot >= task.slots || rank >= task.k) continue;
    const int64_t at = (static_cast<int64_t>(stream) * table.slots + slot) * table.k + rank;
    const float value = table.value[at];
    shared.log_prob[slot][rank] =
        table.lse == nullptr ? value : value - table.lse[static_cast<int64_t>(stream) * table.slots + slot];
    shared.id[slot][rank] = table.id[at];
  }
}

__device__ AncestorWords ancestors_of(const Links& links, int node) {
  uint64_t words[kAncestorWords] = {};
  for (int i = node; i >= 0; i = links.parent[i]) {
#pragma unroll
    for (int w = 0; w < kAncestorWords; ++w) words[w] |= i / 64 == w ? uint64_t{1} << (i % 64) : 0;
  }
  return {words[0], words[1], words[2], words[3]};
}

// One thread a node.
__device__ void emit(const TreeShared& shared, Links& links, int32_t root_token, int64_t first, const TreeArrays& out) {
  const int node = threadIdx.x, rows = shared.rows;
  const bool mine = node < rows;
  const int at = mine ? shared.slot_of[node] : 0, parent = node == 0 || !mine ? -1 : shared.node_of[shared.parent[at]];
  if (node < kMaxRows) {
    links.parent[node] = static_cast<int16_t>(parent);
    links.first_child[node] = links.next_sibling[node] = -1;
  }
  __syncthreads();
  const int depth = shared.depth[at], rank = shared.rank[at];
  if (mine && node > 0)
    (rank == 0 ? links.first_child[parent] : links.next_sibling[shared.node_of[shared.previous[at]]]) =
        static_cast<int16_t>(node);
  __syncthreads();
  if (!mine) return;
  const int64_t row = first + node;
  out.token[row] = node == 0 ? root_token : shared.id[depth - 1][rank];
  out.parent[row] = static_cast<int16_t>(parent);
  out.depth[row] = static_cast<int16_t>(depth);
  out.rank[row] = static_cast<int16_t>(rank);
  out.first_child[row] = links.first_child[node];
  out.next_sibling[row] = links.next_sibling[node];
  out.log_prob[row] = shared.score[at];
  out.floor[row] = shared.floor[node];
  out.ancestors[row] = ancestors_of(links, node);
}

__global__ void __launch_bounds__(kTreeThreads) build_trees_kernel(const BuildArgs a) {
  extern __shared__ __align__(16) uint8_t memory[];
  TreeShared& shared = *reinterpret_cast<TreeShared*>(memory);
  Links& links = *reinterpret_cast<Links*>(memory + sizeof(TreeShared));
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int stream = blockIdx.x;
  const TreeRequest request = a.requests[stream];
  TreeTask task;
  task.slots = max(min(a.table.slots, request.max_depth), 0);
  task.k = max(min(a.table.k, request.k), 0);
  task.budget = max(min(request.budget, kMaxNodes), 0);
  task.chain_first = request.chain_first != 0;
  load(a.table, task, stream, shared);
  DeviceBlock block;
  TreeSearch<DeviceBlock>(block, shared, task).run();
  if (threadIdx.x == 0) a.out.rows[stream] = shared.rows;
  emit(shared, links, request.root_token, static_cast<int64_t>(stream) * kMaxRows, a.out);
}

}  // namespace

int64_t tree_arrays_bytes(int32_t streams) {
  return round_up(static_cast<int64_t>(streams) * 4, 256) +
         static_cast<int64_t>(streams) * kMaxRows * (4 + 5 * 2 + 2 * 8 + static_cast<int64_t>(sizeof(AncestorWords)));
}

TreeArrays tree_arrays(void* memory, int32_t streams) {
  const int64_t rows = static_cast<int64_t>(streams) * kMaxRows;
  TreeArrays out;
  uint8_t* at = static_cast<uint8_t*>(memory);
  const auto take = [&at](auto*& array, int64_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
    at += count * static_cast<int64_t>(sizeof(*array));
  };
  take(out.rows, round_up(static_cast<int64_t>(streams), 64));
  take(out.ancestors, rows);
  take(out.log_prob, rows);
  take(out.floor, rows);
  take(out.token, rows);
  take(out.parent, rows);
  take(out.depth, rows);
  take(out.rank, rows);
  take(out.first_child, rows);
  take(out.next_sibling, rows);
  return out;
}

Status run_build_trees(int32_t streams, const DraftTable& table, const TreeRequest* requests, const TreeArrays& out,
                       cudaStream_t stream) {
  if (streams == 0) return {};
  if (table.slots < 0 || table.slots > kMaxDepth || table.k < 0 || table.k > kMaxRanks)
    return Error{Code::kInvalidArgument, "draft trees on the GPU: " + std::to_string(table.slots) + " slots of " +
                                             std::to_string(table.k) + " candidates; the limits are " +
                                             std::to_string(kMaxDepth) + " and " + std::to_string(kMaxRanks)};
  constexpr int kShared = static_cast<int>(sizeof(TreeShared) + sizeof(Links));
  static_assert(kShared <= 99 * 1024);
  const std::string what = "draft trees of " + std::to_string(streams) + " streams";
  TRY(cuda_status(cudaFuncSetAttribute(build_trees_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
                  what));
  return cuda_status(launch_after(build_trees_kernel, dim3(static_cast<unsigned>(streams)), kTreeThreads, kShared,
                                  stream, BuildArgs{table, requests, out}),
                     what);
}

}  // namespace ddtree::cuda
