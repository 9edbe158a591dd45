// What:    trees → the rows of one verification pass, trimmed to what a pass may hold
// Shapes:  [streams, 256] → [max_rows]
// Mapping: one CTA a stream; where rows are too many, each CTA finds for itself what every tree keeps, a warp a tree
// Bound:   latency
// Limits:  kMaxStreams streams
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/spec/trees.h"

namespace ddtree::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMaxStreams = 1024;

// Nodes of all other trees that come before one of `tree` with this floor; every lane gets the sum. Floors descend.
__device__ int before_in_others(const LayOutArgs& a, int tree, double floor, int lane) {
  int before = 0;
  for (int other = lane; other < a.streams; other += 32) {
    if (other == tree) continue;
    const double* floors = a.trees.floor + static_cast<int64_t>(other) * kMaxRows;
    int low = 0, high = a.trees.rows[other] - 1;  // nodes 1 … low come before, those after `high` don't
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (floors[middle] > floor || (floors[middle] == floor && other < tree))
        low = middle;
      else
        high = middle - 1;
    }
    before += low;
  }
  return __reduce_add_sync(~0u, before);
}

// A warp's answer for one tree: how many of its nodes are among the first `room` of all.
__device__ int kept_nodes(const LayOutArgs& a, int tree, int room, int lane) {
  int low = 0, high = a.trees.rows[tree] - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    const double floor = a.trees.floor[static_cast<int64_t>(tree) * kMaxRows + middle];
    if (middle - 1 + before_in_others(a, tree, floor, lane) < room)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

__device__ int sum_of(const int* values, int count, int lane) {
  int sum = 0;
  for (int i = lane; i < count; i += 32) sum += values[i];
  return __reduce_add_sync(~0u, sum);
}

__device__ void write_row(const LayOutArgs& a, int stream, int node, int first_row, int kept) {
  const int64_t from = static_cast<int64_t>(stream) * kMaxRows + node;
  const int to = first_row + node;
  a.out.token[to] = a.trees.token[from];
  a.out.position[to] = a.context[stream] + a.trees.depth[from];
  a.out.kv_row[to] = a.scratch_row[stream] + node;
  a.out.ancestors[to] = a.trees.ancestors[from];
  if (a.trees.first_child[from] > kept) a.trees.first_child[from] = -1;
  if (a.trees.next_sibling[from] > kept) a.trees.next_sibling[from] = -1;
}

__global__ void __launch_bounds__(kThreads) lay_out_kernel(const LayOutArgs a) {
  __shared__ int rows[kMaxStreams];  // of each tree, after trimming
  __shared__ int first_rows[2];      // of this stream's rows, and of the padding
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int stream = blockIdx.x, t = threadIdx.x, lane = t % 32, warp = t / 32;
  for (int i = t; i < a.streams; i += kThreads) rows[i] = a.trees.rows[i];
  __syncthreads();
  const int wanted = sum_of(rows, a.streams, lane);
  __syncthreads();
  if (wanted > a.max_rows)
    for (int tree = warp; tree < a.streams; tree += kWarps) {
      const int kept = kept_nodes(a, tree, a.max_rows - a.streams, lane);
      if (lane == 0) rows[tree] = kept + 1;
    }
  __syncthreads();
  if (warp < 2) {
    const int sum = sum_of(rows, warp == 0 ? stream : a.streams, lane);
    if (lane == 0) first_rows[warp] = sum;
  }
  __syncthreads();
  const int first_row = first_rows[0], total = first_rows[1];
  if (t < rows[stream]) write_row(a, stream, t, first_row, rows[stream] - 1);
  if (t == 0) a.out.first_row[stream] = first_row;
  if (t == 0 && stream == 0) a.out.first_row[a.streams] = total;
  for (int row = total + stream * kThreads + t; row < a.max_rows; row += a.streams * kThreads) {
    a.out.token[row] = -1;
    a.out.position[row] = 0;
    a.out.kv_row[row] = a.padding_kv_row;
    a.out.ancestors[row] = AncestorWords{};
  }
}

}  // namespace

Status run_lay_out_trees(const LayOutArgs& args, cudaStream_t stream) {
  if (args.streams == 0) return {};
  if (args.streams > kMaxStreams || args.max_rows < args.streams)
    return Error{Code::kInvalidArgument,
                 "laying out " + std::to_string(args.streams) + " draft trees in " + std::to_string(args.max_rows) +
                     " rows: each needs one, and the limit is " + std::to_string(kMaxStreams) + " trees"};
  return cuda_status(launch_after(lay_out_kernel, dim3(static_cast<unsigned>(args.streams)), kThreads, 0, stream, args),
                     "rows of " + std::to_string(args.streams) + " draft trees");
}

}  // namespace ddtree::cuda
