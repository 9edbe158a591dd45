// What:    trees and the target's tokens → accepted paths, next roots, new lengths and the copies that commit them
// Shapes:  [streams, 256] → [streams, 17]
// Mapping: one CTA a stream: all threads bring the tree into shared memory, one follows its links
// Bound:   latency; a link is one 16-byte load from shared memory, and at most 255 ascend
// Limits:  kMaxRows, kMaxDepth of spec/tree.h
#include "backend/cuda/spec/walk.h"

#include <string>

#include "backend/batch.h"
#include "backend/cuda/cuda_status.h"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

namespace ddtree::cuda {
namespace {

constexpr int kThreads = kMaxRows;

struct alignas(16) Row {
  int32_t token, sampled, first_child, next_sibling;
};

struct Path {
  int32_t row[kMaxAccepted];
  int32_t committed[kMaxAccepted];
  int32_t length;
  WalkStatus status;
};

// The child of `node` that holds `token`, −1 for none, −2 for links that lead astray.
__device__ int find_child(const Row* tree, int rows, int node, int32_t first_child, int32_t token) {
  int previous = node;
  for (int child = first_child; child != -1;) {
    if (child <= previous || child >= rows) return -2;
    const Row row = tree[child];
    if (row.token == token) return child;
    previous = child;
    child = row.next_sibling;
  }
  return -1;
}

__device__ WalkStatus follow(const Row* tree, int rows, Path& path) {
  int node = 0, length = 0;
  while (true) {
    const Row row = tree[node];
    path.row[length] = node;
    path.committed[length++] = row.sampled;
    const int child = find_child(tree, rows, node, row.first_child, row.sampled);
    path.length = length;
    if (child == -1) return WalkStatus::kOk;
    if (child < 0) return WalkStatus::kLinks;
    if (length == kMaxAccepted) return WalkStatus::kDepth;
    node = child;
  }
}

__global__ void __launch_bounds__(kThreads) walk_kernel(const WalkArgs a) {
  __shared__ Row tree[kMaxRows];
  __shared__ Path path;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int stream = blockIdx.x, t = threadIdx.x;
  const int first_row = a.first_row[stream], rows = a.first_row[stream + 1] - first_row;
  const int context = a.context[stream], scratch_row = a.scratch_row[stream], pages = a.page_count[stream];
  const bool sane = rows >= 1 && rows <= kMaxRows;
  if (sane && t < rows) {
    const int64_t at = static_cast<int64_t>(stream) * kMaxRows + t;
    tree[t] = {a.trees.token[at], a.sampled[first_row + t], a.trees.first_child[at], a.trees.next_sibling[at]};
  }
  // The page of this thread's accepted row, if there will be one.
  const int position = context + t, page_at = position / kPageRows;
  int page = -1;
  if (t < kMaxAccepted && context >= 0 && position >= 0 && page_at < pages && page_at < a.page_stride)
    page = a.pages[static_cast<int64_t>(stream) * a.page_stride + page_at];
  __syncthreads();
  if (t == 0) path.status = sane ? follow(tree, rows, path) : WalkStatus::kRows;
  __syncthreads();
  const bool accepted = path.status == WalkStatus::kOk && t < path.length;
  const bool homeless = __syncthreads_or(accepted && page < 0) != 0;
  const WalkStatus status = homeless ? WalkStatus::kPages : path.status;
  const bool ok = status == WalkStatus::kOk, mine = ok && accepted;
  if (t < kMaxAccepted) {
    const int64_t at = static_cast<int64_t>(stream) * kMaxAccepted + t;
    a.out.row[at] = mine ? first_row + path.row[t] : -1;
    a.out.committed[at] = mine ? path.committed[t] : -1;
    a.out.copies[at] =
        mine ? RowCopy{scratch_row + path.row[t], page * kPageRows + position % kPageRows} : RowCopy{-1, -1};
  }
  if (t > 0) return;
  a.out.status[stream] = static_cast<int32_t>(status);
  a.out.length[stream] = ok ? path.length : 0;
  a.out.next[stream] = ok ? path.committed[path.length - 1] : -1;
  a.out.context[stream] = context + (ok ? path.length : 0);
}

}  // namespace

Status run_walk(const WalkArgs& args, cudaStream_t stream) {
  if (args.streams == 0) return {};
  return cuda_status(launch_after(walk_kernel, dim3(static_cast<unsigned>(args.streams)), kThreads, 0, stream, args),
                     "walk of " + std::to_string(args.streams) + " streams");
}

}  // namespace ddtree::cuda
