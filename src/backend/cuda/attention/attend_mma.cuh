// What:    out[t, h] = softmax(scale · q[t, h] · Kᵀ) · V over the keys that row t sees
// Shapes:  q [T, H, qk] bf16 · cache [rows, width] bf16 · out [T, H, v] bf16
// Mapping: a CTA an item (work.h); 8 warps bring chunks by cp.async, one ahead where there is room for two, and
// multiply
//          by mma.sync. Committed chunks first, then those with keys of the batch.
// Bound:   docs/kernels/attention.md; this kernel builds for every architecture and carries no speed target
// Limits:  attend.h check_attend_spec; heads ≥ 1
#pragma once

#include "backend/cuda/attention/attend_device.cuh"

namespace ddtree::cuda {

template <class C>
__device__ __forceinline__ void committed_chunks(AttendTile<C>& tile, int begin, int end) {
  if (begin >= end) return;
  const bool ahead = tile.a.stages > 1;
  tile.sync();
  tile.load_page(0, begin);
  copy_commit();
  for (int chunk = begin; chunk < end; ++chunk) {
    const int stage = ahead ? (chunk - begin) % 2 : 0;
    const bool more = chunk + 1 < end;
    if (ahead && more) {
      tile.load_page(1 - stage, chunk + 1);
      copy_commit();
      copy_wait<1>();
    } else {
      copy_wait<0>();
    }
    tile.sync();
    tile.committed_chunk(stage, chunk);
    tile.sync();
    if (!ahead && more) {
      tile.load_page(0, chunk + 1);
      copy_commit();
    }
  }
}

template <class C>
__global__ void __launch_bounds__(kAttendThreads, 1) attend_mma_kernel(const __grid_constant__ AttendKernelArgs a) {
  extern __shared__ __align__(1024) uint8_t smem[];
  wait_for_previous_kernel();
  let_next_kernel_start();
  AttendItem item;
  if (!find_item(a, static_cast<int>(blockIdx.x), item)) return;
  AttendTile<C> tile(a, item, smem, threadIdx.x / 32);
  tile.load_queries();
  tile.find_rows();
  if (tile.tile_limit == 0) return;
  const int per_split = split_keys(item.bucket) / kChunkKeys;
  for (int split = item.first_split; split < item.end_split; ++split) {
    const int begin = max(split * per_split, tile.tile_oldest / kChunkKeys);
    const int end = min((split + 1) * per_split, div_up(tile.tile_limit, kChunkKeys));
    if (begin >= end) continue;
    tile.begin_split();
    const int committed = max(begin, min(end, item.segment.context / kChunkKeys));
    if (committed < end) tile.list_chunk(committed);
    committed_chunks(tile, begin, committed);
    for (int chunk = committed; chunk < end; ++chunk) tile.batch_chunk(chunk);
    tile.end_split(split);
  }
}

}  // namespace ddtree::cuda
