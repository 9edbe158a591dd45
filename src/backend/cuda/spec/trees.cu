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
  // The same by 1, of all threads of a warp that are here: one addition for them.
  template <class T>
  __device__ static T add_one(T* p) {
    const uint32_t here = __activemask(), below = here & ((1u << threadIdx.x % 32) - 1);
    T first = 0;
    if (below == 0) first = atomicAdd(p, static_cast<T>(__popc(here)));
    return __shfl_sync(here, first, __ffs(here) - 1) + static_cast<T>(__popc(below));
  }
  // Of whole warps: where this thread's `count` begin.
  __device__ static int allocate(int* p, int count) {
    const int lane = static_cast<int>(threadIdx.x) % 32,
              until = static_cast<int>(inclusive(static_cast<uint32_t>(count), lane));
    int first = 0;
    if (lane == 31 && until > 0) first = atomicAdd(p, until);
    return __shfl_sync(~0u, first, 31) + until - count;
  }
  __device__ static void set(uint32_t* p, uint32_t bits) { atomicOr(p, bits); }
  __device__ static int highest_bit(uint32_t v) { return 31 - __clz(v); }
  __device__ static void lower(int* p, int v) { atomicMin(p, v); }
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
    before -= sum;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) before += w < t / 32 ? warp_sum[w] : 0;
    const uint32_t ends[4] = {before + own.x, before + own.x + own.y, before + own.x + own.y + own.z, before + sum};
    reinterpret_cast<uint4*>(offset)[t] = make_uint4(before, ends[0], ends[1], ends[2]);
    const auto enough = static_cast<uint32_t>(wanted);
    if (before < enough && ends[3] >= enough)
      *limit = 4 * t + (ends[0] >= enough ? 0 : ends[1] >= enough ? 1 : ends[2] >= enough ? 2 : 3);
    if (t == kTreeThreads - 1) offset[kBins] = ends[3];
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
struct alignas(16) Words {
  uint64_t x, y, z, w;
};
struct Links {
  Words ancestors[kMaxRows];
  int16_t up[kMaxRows];  // an ancestor, 2ⁿ levels up or the root
  int16_t first_child[kMaxRows], next_sibling[kMaxRows];
};

// All of the stream's table, whatever the request: so that the loads need not wait for it.
__device__ void load(const DraftTable& table, int stream, TreeSearch<DeviceBlock>& search) {
  constexpr int kShare = kMaxDepth * kMaxRanks / kTreeThreads;
  float value[kShare], lse[kShare];
  int32_t id[kShare];
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * kTreeThreads, slot = e / kMaxRanks, rank = e % kMaxRanks;
    value[i] = lse[i] = 0.f, id[i] = 0;
    if (slot >= table.slots || rank >= table.k) continue;
    const int64_t row = static_cast<int64_t>(stream) * table.slots + slot;
    value[i] = table.value[row * table.k + rank];
    id[i] = table.id[row * table.k + rank];
    if (table.lse != nullptr) lse[i] = table.lse[row];
  }
#pragma unroll
  for (int i = 0; i < kShare; ++i) {
    const int e = static_cast<int>(threadIdx.x) + i * kTreeThreads, slot = e / kMaxRanks, rank = e % kMaxRanks;
    if (slot < table.slots && rank < table.k)
      search.put_candidate(slot, rank, table.lse == nullptr ? value[i] : value[i] - lse[i], id[i]);
  }
}

__device__ void set_bit(Words& words, int bit) {
  const uint64_t value = uint64_t{1} << bit % 64;
  words.x |= bit / 64 == 0 ? value : 0;
  words.y |= bit / 64 == 1 ? value : 0;
  words.z |= bit / 64 == 2 ? value : 0;
  words.w |= bit / 64 == 3 ? value : 0;
}

// One thread a node. Ancestors double their reach four times: each node begins with itself and the root, and has at
// most 15 others above.
__device__ void emit(const TreeShared& shared, Links& links, int32_t root_token, int64_t first, const TreeArrays& out) {
  const int node = threadIdx.x, rows = shared.rows;
  const bool mine = node < rows;
  const int at = mine ? shared.slot_of[node] : 0, parent = mine && node > 0 ? shared.node_of[shared.parent[at]] : -1;
  const int depth = shared.depth[at], rank = shared.rank[at];
  Words ancestors = {1, 0, 0, 0};
  int up = max(parent, 0);
  if (mine) {
    set_bit(ancestors, node);
    links.ancestors[node] = ancestors;
    links.up[node] = static_cast<int16_t>(up);
    links.first_child[node] = links.next_sibling[node] = -1;
  }
  __syncthreads();
  if (mine && node > 0)
    (rank == 0 ? links.first_child[parent] : links.next_sibling[shared.node_of[shared.previous[at]]]) =
        static_cast<int16_t>(node);
  for (int round = 0; round < 4; ++round) {
    if (mine) {
      const Words more = links.ancestors[up];
      up = links.up[up];
      ancestors.x |= more.x, ancestors.y |= more.y, ancestors.z |= more.z, ancestors.w |= more.w;
    }
    __syncthreads();
    if (mine) links.ancestors[node] = ancestors, links.up[node] = static_cast<int16_t>(up);
    __syncthreads();
  }
  if (!mine) return;
  const int64_t row = first + node;
  out.token[row] = node == 0 ? root_token : shared.id[depth - 1][rank];
  out.parent[row] = static_cast<int16_t>(parent);
  out.depth[row] = static_cast<int16_t>(depth);
  out.rank[row] = static_cast<int16_t>(rank);
  out.first_child[row] = links.first_child[node];
  out.next_sibling[row] = links.next_sibling[node];
  out.log_prob[row] = shared.log_sum[node];
  out.floor[row] = shared.floor[node];
  out.ancestors[row] = {ancestors.x, ancestors.y, ancestors.z, ancestors.w};
}

__global__ void __launch_bounds__(kTreeThreads) build_trees_kernel(const BuildArgs a) {
  extern __shared__ __align__(16) uint8_t memory[];
  TreeShared& shared = *reinterpret_cast<TreeShared*>(memory);
  Links& links = *reinterpret_cast<Links*>(memory + sizeof(TreeShared));
  const int stream = blockIdx.x;
  DeviceBlock block;
  TreeSearch<DeviceBlock> search(block, shared);
  search.clear();
  wait_for_previous_kernel();
  let_next_kernel_start();
  const TreeRequest request = a.requests[stream];
  load(a.table, stream, search);
  __syncthreads();
  TreeTask task;
  task.slots = max(min(a.table.slots, request.max_depth), 0);
  task.k = max(min(a.table.k, request.k), 0);
  task.budget = max(min(request.budget, kMaxNodes), 0);
  task.chain_first = request.chain_first != 0;
  search.run(task);
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
