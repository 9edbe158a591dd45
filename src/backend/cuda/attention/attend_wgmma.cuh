// What:    attend_mma.cuh's attention for MLA (512 + 64), by wgmma; the bits are the same (docs/kernels/attention.md)
// Mapping: a CTA an item; two warpgroups of consumers and a warp that copies. Both hold 64 rows of O, each half of its
//          512 columns, and add every chunk's values; of two neighbouring chunks each computes the scores and weights
//          of one, while the other's products run. Weights go to the partner through shared memory, as do maxima. Two
//          CTAs whose tiles share a split form a cluster and fetch every chunk once: each brings one half of it, for
//          both.
// Bound:   an SM takes a chunk × 64 rows in 2176 cycles of its tensor cores, its 73,728 bytes in about 2000
// Seen:    bench/results/h200/attend*.json
// Limits:  sm_90, 227 KB of shared memory
//
// Last chunks, with keys of the batch: AttendTile's, by mma.sync.
#pragma once

#include <cuda.h>

#include "backend/cuda/attention/attend_device.cuh"
#include "backend/cuda/wgmma.cuh"

namespace ddtree::cuda {

using WgmmaConfig = AttendConfig<576, 512, 0, 4>;

inline constexpr int kWgmmaThreads = kAttendThreads + 128;
inline constexpr int kWgmmaBars = WgmmaConfig::shared_bytes(2);  // full [2], empty [2][2 halves]
inline constexpr int kWgmmaShared = kWgmmaBars + 64;
inline constexpr int kWeightsReady = 2;  // named barriers, of either warpgroup
inline constexpr int kHalfSubs = 4;      // 64-column tiles of a chunk's left half: V's columns of warpgroup 0

// What an item's warps agree on.
struct ChunkStream {
  uint32_t bars;  // shared address of the barriers
  bool pair;      // the cluster's CTAs fetch for each other
  uint32_t rank;  // in the cluster
  int32_t done;   // chunks so far: their parity is the stage and the warpgroup that scores them

  __device__ uint32_t full(int stage) const { return bars + stage * 8; }
  __device__ uint32_t empty(int stage, int half) const { return bars + 16 + (stage * 2 + half) * 8; }
  __device__ void init() const {
    for (int stage = 0; stage < 2; ++stage) {
      barrier_init(full(stage), 1);
      for (int half = 0; half < 2; ++half) barrier_init(empty(stage, half), pair ? 8 : 4);  // warps
    }
    barrier_init_fence();
  }
  // A warp of `half` is done with the chunk.
  __device__ void release(int chunk, int half) const {
    if (threadIdx.x % 32 != 0) return;
    if (pair)
      barrier_arrive_at(empty(chunk % 2, half), static_cast<uint32_t>(half));
    else
      barrier_arrive(empty(chunk % 2, half));
  }
};

// Chunks of a split: [begin, committed) by wgmma, whatever the rows are, then up to `end` with keys of the batch.
struct SplitChunks {
  int begin, committed, end;
  __device__ SplitChunks(const AttendItem& item, int split, int tile_limit) {
    const int per_split = split_keys(item.bucket) / kChunkKeys;
    begin = split * per_split;
    committed = max(begin, min(begin + per_split, item.segment.context / kChunkKeys));
    end = min(begin + per_split, div_up(tile_limit, kChunkKeys));
  }
};

// The copying thread. Each chunk is asked for two chunks before its place in shared memory is free: from then on it
// comes from L2.
struct ChunkCopier {
  const AttendKernelArgs& a;
  const AttendItem& item;
  const void* map;
  ChunkStream stream;
  uint32_t ring;

  __device__ int page_row(int chunk) const { return a.pages[item.segment.first_page + chunk] * kChunkKeys; }
  __device__ bool mine(int half) const { return !stream.pair || half == static_cast<int>(stream.rank); }

  __device__ void ask(int chunk) const {
    const int row = page_row(chunk);
    for (int sub = mine(0) ? 0 : kHalfSubs; sub < (mine(1) ? WgmmaConfig::kSubs : kHalfSubs); ++sub)
      tensor_prefetch(map, sub * 64, row);
  }

  __device__ void copy(int chunk) {
    const int row = page_row(chunk), stage = stream.done % 2, use = stream.done / 2;
    bool armed = false;
    for (int half = 0; half < 2; ++half) {
      if (!mine(half)) continue;
      if (use > 0) barrier_wait(stream.empty(stage, half), (use - 1) & 1);
      if (!armed) barrier_arrive_expect(stream.full(stage), WgmmaConfig::kStageBytes);
      armed = true;
      const int begin = half * kHalfSubs, end = half == 0 ? kHalfSubs : WgmmaConfig::kSubs;
      for (int sub = begin; sub < end; ++sub) {
        const uint32_t to = ring + stage * WgmmaConfig::kStageBytes + sub * kSubBytes;
        if (stream.pair)
          tensor_copy_to(3, to, map, sub * 64, row, stream.full(stage));
        else
          tensor_copy(to, map, sub * 64, row, stream.full(stage));
      }
    }
    ++stream.done;
  }

  __device__ void run() {
    for (int split = item.first_split; split < item.end_split; ++split) {
      const SplitChunks chunks(item, split, 0);
      for (int chunk = chunks.begin; chunk < chunks.committed; ++chunk) {
        copy(chunk);
        if (chunk + 2 < chunks.committed) ask(chunk + 2);
      }
    }
  }
};

// One warpgroup's part in the committed chunks of a split.
struct WgmmaConsumer {
  using C = WgmmaConfig;
  AttendTile<C>& tile;
  ChunkStream& stream;
  int wg;  // the half of V's columns too

  // The value of lane 0, so that the compiler knows that all lanes have the same: descriptors are to be made by the
  // scalar unit.
  static __device__ __forceinline__ uint32_t uniform(uint32_t v) { return __shfl_sync(~0u, v, 0); }

  // O += P · V of the stage, in flight afterwards.
  __device__ __forceinline__ void add_values(const uint32_t (&p)[4][4], int stage) {
    const uint32_t v = uniform(tile.base + C::kRing + stage * C::kStageBytes + wg * kHalfSubs * kSubBytes);
    wgmma_fence();
#pragma unroll
    for (int b = 0; b < 4; ++b)
      wgmma_m64n256k16(tile.o, p[b], wgmma_swizzled_descriptor(v + b * 2048, 1024, kSubBytes));
    wgmma_commit();
#pragma unroll
    for (int b = 0; b < 4; ++b) tile.add_weights(p[b]);
  }

  __device__ __forceinline__ void score(float (&s)[8][4], int stage) const {
    const uint32_t q = tile.base, k = uniform(tile.base + C::kRing + stage * C::kStageBytes);
    const uint64_t qd = wgmma_swizzled_descriptor(q, 1024, 16), kd = wgmma_swizzled_descriptor(k, 1024, 16);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < C::kQk / 16; ++step) {
      const int offset = (step / 4 * kSubBytes + step % 4 * 32) >> 4;
      wgmma_m64n64k16(s, qd + offset, kd + offset, step > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ float* maxima(int stage) const {
    return reinterpret_cast<float*>(tile.smem + C::kMax) + stage * C::kRows + tile.mg * 16 + tile.lane / 4;
  }

  // O, and its sums, onto the new maxima.
  __device__ __forceinline__ void rise(const float (&next)[2]) {
    float keep[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float offset = next[h] == kNone ? 0.f : __fmul_rn(next[h], tile.a.scale_log2);
      keep[h] = exp2_approx(__fsub_rn(__fmul_rn(tile.top[h], tile.a.scale_log2), offset));
      tile.top[h] = next[h];
    }
    tile.rescale(keep);
  }

  // The weights of the partner's chunk; O onto its maxima. Nothing is in flight.
  __device__ __forceinline__ void receive(uint32_t (&p)[4][4], int chunk) {
    const int stage = chunk % 2;
    barrier_wait(stream.full(stage), chunk / 2 & 1);
    named_barrier(kWeightsReady + 1 - wg, kAttendThreads);
#pragma unroll
    for (int b = 0; b < 4; ++b) tile.load_weights(p[b], b);
    const float next[2] = {maxima(stage)[0], maxima(stage)[8]};
    rise(next);
  }

  // Our chunk: weights for both from its scores, then our columns.
  __device__ __forceinline__ void lead(float (&s)[8][4], int chunk) {
    const int stage = chunk % 2;
    wgmma_settle(s);
    float next[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = tile.top[h];
#pragma unroll
      for (int j = 0; j < 8; ++j) m = fmaxf(m, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      next[h] = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      if (tile.lane % 4 == 0) maxima(stage)[8 * h] = next[h];
    }
    uint32_t p[4][4];
    weigh(p, s, next);
    named_barrier_arrive(kWeightsReady + wg, kAttendThreads);
    rise(next);
    add_values(p, stage);
  }

  // Nothing is in flight any more; the chunk whose values were, if any, may go.
  __device__ __forceinline__ void land(int chunk) {
    wgmma_wait<0>();
    wgmma_settle(tile.o);
    if (chunk >= 0) stream.release(chunk, wg);
  }

  // Weights, as A fragments here and for the partner in shared memory.
  __device__ __forceinline__ void weigh(uint32_t (&p)[4][4], const float (&s)[8][4], const float (&next)[2]) const {
    const int row = tile.mg * 16 + tile.lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float offset = next[h] == kNone ? 0.f : __fmul_rn(next[h], tile.a.scale_log2);
      uint8_t* to = tile.smem + C::kP + (row + 8 * h) * 128 + tile.lane % 4 * 4;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t pair = pack_bf16_pair(exp2_approx(fmaf(s[j][2 * h], tile.a.scale_log2, -offset)),
                                             exp2_approx(fmaf(s[j][2 * h + 1], tile.a.scale_log2, -offset)));
        p[j / 2][j % 2 * 2 + h] = pair;
        *reinterpret_cast<uint32_t*>(to + (j ^ (tile.lane / 4)) * 16) = pair;
      }
    }
  }

  // Both of a pair of chunks, the partner's first.
  __device__ __forceinline__ void follow_and_lead(int chunk) {
    float s[8][4];
    uint32_t p[4][4];
    receive(p, chunk);
    add_values(p, chunk % 2);
    barrier_wait(stream.full((chunk + 1) % 2), (chunk + 1) / 2 & 1);
    score(s, (chunk + 1) % 2);
    wgmma_wait<1>();
    wgmma_settle(tile.o);
    stream.release(chunk, wg);
    wgmma_wait<0>();
    lead(s, chunk + 1);
  }

  // The next n chunks; nothing is in flight before or after.
  __device__ __forceinline__ void run(int n) {
    int chunk = stream.done;
    const int end = chunk + n;
    stream.done = end;
    if (n <= 0) return;
    int last = -1;  // whose values are in flight
    if (chunk % 2 == wg) {
      float s[8][4];
      barrier_wait(stream.full(chunk % 2), chunk / 2 & 1);
      score(s, chunk % 2);
      wgmma_wait<0>();
      lead(s, chunk);
      last = chunk++;
    }
#pragma unroll 1
    for (; chunk + 1 < end; chunk += 2) {
      land(last);
      follow_and_lead(chunk);
      last = chunk + 1;
    }
    land(last);
    if (chunk < end) {
      uint32_t p[4][4];
      receive(p, chunk);
      add_values(p, chunk % 2);
      land(chunk);
    }
  }
};

__device__ __forceinline__ void attend_by_wgmma(const AttendKernelArgs& a, const void* map) {
  using C = WgmmaConfig;
  extern __shared__ __align__(1024) uint8_t smem[];
  if (threadIdx.x == kAttendThreads) tensor_map_prefetch(map);
  wait_for_previous_kernel();
  let_next_kernel_start();
  AttendItem item;
  if (!find_item(a, static_cast<int>(blockIdx.x), item)) return;
  // The neighbour has another tile of the same split, or neither thinks so.
  const bool pair = blockIdx.x % 2 == 0 ? item.column + 1 < item.columns : item.column > 0;
  ChunkStream stream{shared_address(smem + kWgmmaBars), pair, cluster_rank(), 0};
  if (threadIdx.x == 0) stream.init();
  __syncthreads();
  if (pair) cluster_sync();

  if (threadIdx.x >= kAttendThreads) {
    lower_registers<24>();
    if (threadIdx.x == kAttendThreads) ChunkCopier{a, item, map, stream, shared_address(smem + C::kRing)}.run();
    __syncwarp();
  } else {
    raise_registers<240>();
    AttendTile<C> tile(a, item, smem, threadIdx.x / 32);
    tile.load_queries();
    tile.find_rows();
    copy_wait_all();
    proxy_fence();
    tile.sync();
    WgmmaConsumer consumer{tile, stream, tile.ng};
    for (int split = item.first_split; split < item.end_split; ++split) {
      const SplitChunks chunks(item, split, tile.tile_limit);
      tile.begin_split();
      if (chunks.committed < chunks.end) tile.list_chunk(chunks.committed);
      consumer.run(chunks.committed - chunks.begin);
      for (int chunk = chunks.committed; chunk < chunks.end; ++chunk) tile.batch_chunk(chunk);
      tile.end_split(split);
    }
  }
  if (pair) cluster_sync();
}

__global__ void __launch_bounds__(kWgmmaThreads, 1) __cluster_dims__(2, 1, 1)
    attend_wgmma_kernel(const __grid_constant__ AttendKernelArgs a, const __grid_constant__ CUtensorMap map) {
  if constexpr (kHasWgmma) attend_by_wgmma(a, &map);
}

}  // namespace ddtree::cuda
