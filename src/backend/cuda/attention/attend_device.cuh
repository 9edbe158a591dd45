// What both attention kernels share: finding an item, its rows' limits, the steps of a chunk by mma.sync, the last
// chunks of a tree, and what becomes of a finished split.
//
// A CTA has 8 warps that compute: kMg groups of 16 rows × kNg shares. In S = Q·Kᵀ a share is a part of the chunk's 64
// keys, in O += P·V a part of V's columns. A thread holds rows g and g + 8 of its group (g = lane / 4), in the layout
// of mma.m16n8k16, which is that of wgmma's accumulators too.
//
// Shared memory holds 64-column tiles of 128-byte rows, 16-byte units exchanged by row (unit ^ row % 8): what the copy
// engine's 128-byte swizzle writes, and what ldmatrix reads without conflicts.
#pragma once

#include <cuda_fp16.h>

#include "backend/cuda/attention/work.h"
#include "backend/cuda/math.cuh"
#include "backend/cuda/ptx.cuh"

namespace ddtree::cuda {

struct AttendKernelArgs {
  const bf16* q;
  const bf16* cache;
  bf16* out;
  const int32_t* position;
  const int32_t* kv_row;
  const uint64_t* ancestors;  // [rows, 4]
  const AttendSegment* segments;
  const int32_t* pages;
  void* partial;  // [items, tile rows, v_dim] fp16 (whole: fp32), before the division; columns by partial_column
  float4* stats;  // [items, tile rows] the greatest score · scale_log2, the sum of weights, the unit of `partial`
  Tiling tiling;
  int32_t segment_count, rows, heads, kv_heads, width, window, tile_rows, stages, fold_batch;
  bool block, whole;
  float scale_log2;  // of scores, for powers of two
};

inline constexpr int kAttendWarps = 8;
inline constexpr int kAttendThreads = kAttendWarps * 32;
inline constexpr int kSubBytes = kChunkKeys * 128;  // 64 columns of a chunk

template <int Qk, int V, int VAt, int Mg>
struct AttendConfig {
  static constexpr int kQk = Qk, kV = V, kVAt = VAt;  // of a key's row in shared memory: V's first column
  static constexpr int kMg = Mg, kNg = kAttendWarps / Mg;
  static constexpr int kRows = 16 * Mg;
  static constexpr int kKeys = kChunkKeys / kNg, kKeyTiles = kKeys / 8;
  static constexpr int kCols = V / kNg, kColTiles = kCols / 8;
  static constexpr int kSubs = (VAt + V > Qk ? VAt + V : Qk) / 64;
  static constexpr int kStageBytes = kSubs * kSubBytes;

  static constexpr int kP = Qk / 64 * kRows * 128;                  // weights of a chunk, after Q
  static constexpr int kMax = kP + kRows * 128;                     // [kNg, kRows] greatest scores
  static constexpr int kTable = kMax + kNg * kRows * 4;             // [kTileNodes, 64] row of the tree in each slot
  static constexpr int kSource = kTable + kTileNodes * kChunkKeys;  // [128] cache rows to gather
  static constexpr int kRing = (kSource + 2 * kChunkKeys * 4 + 1023) / 1024 * 1024;
  static constexpr int shared_bytes(int stages) { return kRing + stages * kStageBytes; }
};

// --- items ---

struct AttendItem {
  AttendSegment segment;
  int32_t bucket, first_split, end_split;
  int32_t kv_head, head0, heads;  // query heads head0 … of the group
  int32_t node0, nodes;           // rows of the segment
  int32_t column, columns;        // of the segment's tiles
};

// By a whole warp. False: there is no such item.
__device__ inline bool find_item(const AttendKernelArgs& a, int index, AttendItem& item) {
  const int lane = threadIdx.x % 32;
  for (int s0 = 0; s0 < a.segment_count; s0 += 32) {
    const int s = s0 + lane;
    int end = s < a.segment_count ? segment_work(a.segments[s], a.tiling, a.block, a.whole).items() : 0;
    for (int d = 1; d < 32; d *= 2) {
      const int before = __shfl_up_sync(~0u, end, d);
      if (lane >= d) end += before;
    }
    const uint32_t beyond = __ballot_sync(~0u, index < end);
    if (beyond == 0) {
      index -= __shfl_sync(~0u, end, 31);
      continue;
    }
    const int found = __ffs(beyond) - 1;
    const int before = __shfl_sync(~0u, end, max(found - 1, 0));
    if (found > 0) index -= before;
    item.segment = a.segments[s0 + found];
    const SegmentWork work = segment_work(item.segment, a.tiling, a.block, a.whole);
    item.bucket = work.first_bucket;
    while (index >= work.bucket_items(item.bucket)) index -= work.bucket_items(item.bucket++);
    const int split = index / work.columns, column = index - split * work.columns;
    item.column = column;
    item.columns = work.columns;
    item.first_split = split;
    item.end_split = a.whole ? work.splits(item.bucket) : split + 1;
    const int node_tiles = a.tiling.node_tiles(item.segment.rows), tile = column / node_tiles;
    item.kv_head = tile / a.tiling.head_tiles;
    item.node0 = (column - tile * node_tiles) * a.tiling.nodes;
    item.head0 = (tile - item.kv_head * a.tiling.head_tiles) * a.tiling.head_tile;
    item.heads = min(a.tiling.head_tile, a.tiling.group - item.head0);
    item.nodes = min(a.tiling.nodes, item.segment.rows - item.node0);
    return true;
  }
  return false;
}

// --- numbers ---

// How two partial results meet: by powers of two relative to the greater maximum.
struct Fold {
  float max, keep, add;
};
__device__ __forceinline__ Fold fold_of(float max, float next) {
  const float m = fmaxf(max, next);
  return {m, exp2_approx(__fsub_rn(max, m)), exp2_approx(__fsub_rn(next, m))};
}
__device__ __forceinline__ float fold(float value, float next, const Fold& f) {
  return fmaf(next, f.add, __fmul_rn(value, f.keep));
}

__device__ __forceinline__ __half2 to_units(float lo, float hi, float fit) {
  return __floats2half2_rn(__fmul_rn(lo, fit), __fmul_rn(hi, fit));
}
// Where value i of a row of a split's partial result lies in the row: a thread's values are neighbours there.
__device__ __forceinline__ int partial_column(int i) { return i / 32 * 32 + i % 8 / 2 * 8 + i % 32 / 8 * 2 + i % 2; }

inline constexpr float kNone = -INFINITY;

// --- a tile's state and steps ---

template <class C>
struct AttendTile {
  const AttendKernelArgs& a;
  const AttendItem& item;
  uint8_t* smem;
  uint32_t base;  // shared address of smem
  int lane, mg, ng;

  // Rows g and g + 8: they see keys [oldest, limit); 0: none.
  int32_t limit[2], oldest[2], node[2];
  int32_t tile_limit, tile_oldest;
  int32_t node_limit;   // of row `lane` of the tile
  int32_t listed = -1;  // the chunk whose sources are in shared memory

  float o[C::kColTiles][4], top[2];
  float sum[2];  // of this thread's weights: columns 2q, 2q + 1 of every 8, q = lane % 4

  __device__ AttendTile(const AttendKernelArgs& args, const AttendItem& it, uint8_t* shared, int warp)
      : a(args),
        item(it),
        smem(shared),
        base(shared_address(shared)),
        lane(threadIdx.x % 32),
        mg(warp % C::kMg),
        ng(warp / C::kMg) {}

  static __device__ __forceinline__ void sync() { named_barrier(1, kAttendThreads); }

  __device__ void find_rows() {
    int32_t node_oldest = INT32_MAX;
    node_limit = 0;
    if (lane < item.nodes) {
      const int32_t position = a.position[item.segment.first_row + item.node0 + lane];
      const int32_t keys = a.block ? item.segment.context + item.segment.rows : position + 1;
      if (bucket_of(keys) == item.bucket) {
        node_limit = keys;
        node_oldest = a.window == 0 ? 0 : max(0, position - (a.window - 1));
      }
    }
    tile_limit = __reduce_max_sync(~0u, node_limit);
    tile_oldest = __reduce_min_sync(~0u, node_oldest);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int row = mg * 16 + lane / 4 + 8 * h, n = a.tiling.node_of(row);
      const bool valid = n < item.nodes && row - n * a.tiling.head_tile < item.heads;
      limit[h] = __shfl_sync(~0u, node_limit, n & 31);
      oldest[h] = __shfl_sync(~0u, node_oldest, n & 31);
      node[h] = valid ? n : -1;
      if (!valid) limit[h] = 0;
    }
  }

  // Element offset of a row's head in q (width kQk) or out (width kV).
  __device__ int64_t head_at(int row, int width) const {
    const int n = a.tiling.node_of(row);
    const int head = item.kv_head * a.tiling.group + item.head0 + row - n * a.tiling.head_tile;
    return static_cast<int64_t>(item.segment.first_row + item.node0) * (a.heads * width) + (n * a.heads + head) * width;
  }

  // A warp copies a row: units of 16 bytes, exchanged within each 64 columns.
  __device__ void load_queries() const {
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < C::kRows; row += kAttendWarps) {
      const int n = a.tiling.node_of(row);
      const bool valid = n < item.nodes && row - n * a.tiling.head_tile < item.heads;
      const bf16* from = a.q + (valid ? head_at(row, C::kQk) : 0);
#pragma unroll
      for (int u = lane; u < C::kQk / 8; u += 32)
        copy_16(base + u / 8 * (C::kRows * 128) + row * 128 + ((u ^ row) & 7) * 16, from + u * 8, valid);
    }
  }

  // --- keys in shared memory; rows 64 … 127 of the ring are the second stage's ---

  static __device__ __forceinline__ int ring_row(int row) { return (row >> 6) * C::kStageBytes + (row & 63) * 128; }
  __device__ __forceinline__ void copy_key(uint32_t to, int row, int64_t cache_row, bool valid) const {
    const bf16* from = a.cache + cache_row * a.width;
    const int key_at = item.kv_head * C::kQk;
    const int value_at = a.kv_heads * C::kQk + item.kv_head * C::kV - C::kVAt;
#pragma unroll
    for (int u = lane; u < C::kSubs * 8; u += 32)
      copy_16(to + u / 8 * kSubBytes + ((u ^ row) & 7) * 16, from + (u * 8 < C::kQk ? key_at : value_at) + u * 8,
              valid);
  }
  __device__ void load_page(int stage, int chunk) const {
    const int64_t first = static_cast<int64_t>(a.pages[item.segment.first_page + chunk]) * kChunkKeys;
    const uint32_t to = base + C::kRing + stage * C::kStageBytes;
#pragma unroll 2
    for (int row = threadIdx.x / 32; row < kChunkKeys; row += kAttendWarps)
      copy_key(to + row * 128, row, first + row, true);
  }
  // Rows of the cache listed at kSource, −1: zeros.
  __device__ void gather(int rows) const {
    const int32_t* list = reinterpret_cast<const int32_t*>(smem + C::kSource);
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < rows; row += kAttendWarps) {
      const int from = list[row];
      copy_key(base + C::kRing + ring_row(row), row, max(from, 0), from >= 0);
    }
  }

  // --- S ---

  // s = Q · keys, tiles of 8 keys; key[j]: ring offset of this lane's row (lane % 8) of tile j; those of `wanted` only.
  __device__ __forceinline__ void score(float (&s)[C::kKeyTiles][4], const int (&key)[C::kKeyTiles],
                                        uint32_t wanted = ~0u) const {
    const int row = mg * 16 + lane % 16;
    const uint32_t q = base + row * 128 + ((lane / 16) ^ (lane % 8)) * 16;
    uint32_t k[C::kKeyTiles];
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) {
      k[j] = base + C::kRing + key[j] + ((lane / 8) ^ (key[j] / 128 % 8)) * 16;
#pragma unroll
      for (int r = 0; r < 4; ++r) s[j][r] = 0.f;
    }
#pragma unroll(C::kQk % 192 == 0 ? 3 : 1)
    for (int sub = 0; sub < C::kQk / 64; ++sub) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // 32 of the 64 columns
        uint32_t qa[2][4];
        load_matrix_x4(qa[0], (q ^ (half * 64)) + sub * (C::kRows * 128));
        load_matrix_x4(qa[1], (q ^ (half * 64 + 32)) + sub * (C::kRows * 128));
#pragma unroll
        for (int j = 0; j < C::kKeyTiles; ++j) {
          if ((wanted >> j & 1) == 0) continue;
          uint32_t b[4];
          load_matrix_x4(b, (k[j] ^ (half * 64)) + sub * kSubBytes);
          mma_m16n8k16(s[j], qa[0], b[0], b[1], s[j]);
          mma_m16n8k16(s[j], qa[1], b[2], b[3], s[j]);
        }
      }
    }
  }

  // --- softmax: weights of the chunk's keys into shared memory, sums and O onto the new maximum ---

  __device__ __forceinline__ void mask(float (&s)[C::kKeyTiles][4], int first_key, const int32_t (&end)[2]) const {
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int key = first_key + ng * C::kKeys + j * 8 + lane % 4 * 2 + r % 2;
        if (key >= end[r / 2] || key < oldest[r / 2]) s[j][r] = kNone;
      }
  }

  __device__ __forceinline__ void softmax(const float (&s)[C::kKeyTiles][4]) {
    float* shared_max = reinterpret_cast<float*>(smem + C::kMax);
    const int row = mg * 16 + lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = kNone;
#pragma unroll
      for (int j = 0; j < C::kKeyTiles; ++j) m = fmaxf(m, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      if (lane % 4 == 0) shared_max[ng * C::kRows + row + 8 * h] = m;
    }
    sync();
    float offset[2], keep[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = top[h];
#pragma unroll
      for (int n = 0; n < C::kNg; ++n) m = fmaxf(m, shared_max[n * C::kRows + row + 8 * h]);
      offset[h] = m == kNone ? 0.f : __fmul_rn(m, a.scale_log2);
      keep[h] = exp2_approx(__fsub_rn(__fmul_rn(top[h], a.scale_log2), offset[h]));
      top[h] = m;
    }
    rescale(keep);
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) {
      const int unit = ng * C::kKeyTiles + j;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float lo = exp2_approx(fmaf(s[j][2 * h], a.scale_log2, -offset[h]));
        const float hi = exp2_approx(fmaf(s[j][2 * h + 1], a.scale_log2, -offset[h]));
        *reinterpret_cast<uint32_t*>(smem + C::kP + (row + 8 * h) * 128 + (unit ^ (lane / 4)) * 16 + lane % 4 * 4) =
            pack_bf16_pair(lo, hi);
      }
    }
    sync();
  }

  __device__ __forceinline__ void rescale(const float (&keep)[2]) {
    if (!__any_sync(~0u, keep[0] != 1.f || keep[1] != 1.f)) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) sum[h] = __fmul_rn(sum[h], keep[h]);
#pragma unroll
    for (int j = 0; j < C::kColTiles; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) o[j][r] = __fmul_rn(o[j][r], keep[r / 2]);
  }

  // --- O += P · V, 16 keys at a time ---

  __device__ __forceinline__ void load_weights(uint32_t (&p)[4], int b) const {
    load_matrix_x4(p, (base + C::kP + (mg * 16 + lane % 16) * 128 + ((lane / 16) ^ (lane % 8)) * 16) ^ (b * 32));
  }
  // Their sums, in the order of the keys; the same wherever a row's weights come from.
  __device__ __forceinline__ void add_weights(const uint32_t (&p)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 w = unpack_bf16_pair(p[i]);
      sum[i % 2] = __fadd_rn(__fadd_rn(sum[i % 2], w.x), w.y);
    }
  }
  // Address of this lane's row (lane % 16) of a block of 16 keys, from the row's ring offset.
  __device__ __forceinline__ uint32_t value_at(int row_offset) const {
    constexpr int kUnitOf = C::kCols % 64 / 8;
    return base + C::kRing + row_offset + (C::kVAt + ng * C::kCols) / 64 * kSubBytes +
           ((lane / 16 + ng * kUnitOf % 8) ^ (row_offset / 128 % 8)) * 16;
  }
  __device__ __forceinline__ void load_values(uint32_t (&v)[4], uint32_t at, int pair) const {
    load_matrix_trans_x4(v, (at ^ (pair % 4 * 32)) + pair / 4 * kSubBytes);
  }

  __device__ __forceinline__ void add_values(int stage) {
#pragma unroll 1
    for (int b = 0; b < 4; ++b) {
      uint32_t p[4];
      load_weights(p, b);
      add_weights(p);
      const uint32_t at = value_at(stage * C::kStageBytes + (b * 16 + lane % 16) * 128);
#pragma unroll
      for (int j = 0; j < C::kColTiles / 2; ++j) {
        uint32_t v[4];
        load_values(v, at, j);
        mma_m16n8k16(o[2 * j], p, v[0], v[1], o[2 * j]);
        mma_m16n8k16(o[2 * j + 1], p, v[2], v[3], o[2 * j + 1]);
      }
    }
  }

  // --- a committed chunk by mma.sync ---

  __device__ __forceinline__ void committed_chunk(int stage, int chunk) {
    int key[C::kKeyTiles];
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) key[j] = stage * C::kStageBytes + (ng * C::kKeys + j * 8 + lane % 8) * 128;
    float s[C::kKeyTiles][4];
    score(s, key);
    if (a.window != 0) mask(s, chunk * kChunkKeys, limit);
    softmax(s);
    add_values(stage);
  }

  // --- chunks with keys of the batch ---

  // Cache row of key `slot` of a chunk that all rows share; −1 beyond the last.
  __device__ int32_t shared_key(int chunk, int slot) const {
    const int key = chunk * kChunkKeys + slot;
    if (key < item.segment.context) return a.pages[item.segment.first_page + chunk] * kChunkKeys + slot;
    const int own = key - item.segment.context;
    return own < item.segment.rows ? a.kv_row[item.segment.first_row + own] : -1;
  }

  // Keys in slots below `shared` are the same for all rows: committed ones, or all of a causal chunk or block. In a
  // tree each row has its ancestors in the slots after them.
  struct BatchChunk {
    int32_t chunk, shared, own;  // own: slots that the deepest row fills
    bool flat;                   // no tree
    bool dense;                  // all rows of the tree are in the ring, in order; else the ancestors, node by node
    int32_t node0, node1, step;  // of the tile, in the ring now; at most `step`
  };

  __device__ __forceinline__ int own_keys(const BatchChunk& t, int32_t keys) const {
    return max(0, min(keys - t.chunk * kChunkKeys, kChunkKeys) - t.shared);
  }

  // Rows of the tree in the slots of every node of the tile.
  __device__ void list_ancestors(const BatchChunk& t) const {
    if (threadIdx.x >= item.nodes) return;
    uint8_t* slots = smem + C::kTable + threadIdx.x * kChunkKeys;
    const int32_t own_row = item.node0 + static_cast<int32_t>(threadIdx.x);
    const uint64_t* words = a.ancestors + 4 * static_cast<int64_t>(item.segment.first_row + own_row);
    int slot = item.segment.context - t.chunk * kChunkKeys;  // of the root; negative: in an earlier chunk
#pragma unroll 1
    for (int w = 0; w < 4; ++w)
#pragma unroll 1
      for (uint64_t bits = words[w]; bits != 0 && slot < kChunkKeys; bits &= bits - 1, ++slot)
        if (slot >= 0) slots[slot] = static_cast<uint8_t>(w * 64 + __ffsll(static_cast<long long>(bits)) - 1);
#pragma unroll 1
    for (slot = max(slot, 0); slot < kChunkKeys; ++slot) slots[slot] = static_cast<uint8_t>(own_row);
  }

  // Ring row of a node's key; slots that it doesn't fill give one that it does.
  __device__ __forceinline__ int tree_row(const BatchChunk& t, int n, int own, int slot) const {
    slot = max(min(slot, t.shared + own - 1), 0);
    if (slot < t.shared) return slot;
    if (t.dense) return t.shared + smem[C::kTable + n * kChunkKeys + slot];
    return t.shared + (n - t.node0) * t.own + slot - t.shared;
  }

  __device__ void list_sources(const BatchChunk& t, int rows) const {
    const int row = threadIdx.x;
    if (row >= rows) return;
    int32_t* list = reinterpret_cast<int32_t*>(smem + C::kSource);
    const int32_t* own_rows = a.kv_row + item.segment.first_row;
    const int own = row - t.shared;
    if (own < 0)
      list[row] = shared_key(t.chunk, row);
    else if (t.dense)
      list[row] = own_rows[own];
    else
      list[row] = own_rows[smem[C::kTable + (t.node0 + own / t.own) * kChunkKeys + t.shared + own % t.own]];
  }

  // What one node's keys give goes to that node's rows only.
  __device__ __forceinline__ void select(float (&d)[4], const float (&value)[4], int n) const {
    if (node[0] == n) d[0] = value[0], d[1] = value[1];
    if (node[1] == n) d[2] = value[2], d[3] = value[3];
  }

  // Tiles of 8 slots of which some have keys of the node's own, or (first) that all nodes share.
  __device__ __forceinline__ void tree_scores(float (&s)[C::kKeyTiles][4], const BatchChunk& t, int n, int own,
                                              bool first) const {
    int key[C::kKeyTiles];
    uint32_t wanted = 0, common = 0;
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) {
      const int slot = ng * C::kKeys + j * 8;
      key[j] = ring_row(tree_row(t, n, own, slot + lane % 8));
      if (slot + 8 <= t.shared) common |= 1u << j;
      if (slot < t.shared + own) wanted |= 1u << j;
    }
    if (!first) wanted &= ~common;
    if (wanted == 0) return;
    float fresh[C::kKeyTiles][4];
    score(fresh, key, wanted);
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) {
      if (common >> j & 1) {
        if (!first) continue;
#pragma unroll
        for (int r = 0; r < 4; ++r) s[j][r] = fresh[j][r];
      } else {
        select(s[j], fresh[j], n);
      }
    }
  }

  // A block of 16 slots; all: every row takes what the node's keys give.
  __device__ __forceinline__ void tree_values(const BatchChunk& t, int n, int own, const uint32_t (&p)[4], int b,
                                              bool all) {
    const uint32_t at = value_at(ring_row(tree_row(t, n, own, b * 16 + lane % 16)));
    const bool mine[2] = {all || node[0] == n, all || node[1] == n};
#pragma unroll
    for (int j = 0; j < C::kColTiles / 2; ++j) {
      uint32_t v[4];
      load_values(v, at, j);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float d[4];
        mma_m16n8k16(d, p, v[2 * i], v[2 * i + 1], o[2 * j + i]);
#pragma unroll
        for (int r = 0; r < 4; ++r) o[2 * j + i][r] = mine[r / 2] ? d[r] : o[2 * j + i][r];
      }
    }
  }

  // The chunk for the nodes whose keys are in the ring.
  __device__ void tree_group(const BatchChunk& t) {
    const int n0 = max(t.node0, a.tiling.node_of(mg * 16)), n1 = min(t.node1, a.tiling.node_of(mg * 16 + 15) + 1);
    float s[C::kKeyTiles][4];
    int32_t end[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) end[h] = node[h] >= t.node0 && node[h] < t.node1 ? limit[h] : 0;
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) s[j][r] = 0.f;
#pragma unroll 1
    for (int n = n0; n < n1; ++n) tree_scores(s, t, n, node_own(t, n), n == n0);
    mask(s, t.chunk * kChunkKeys, end);
    softmax(s);
#pragma unroll 1
    for (int b = 0; b < 4; ++b) {
      if (b * 16 >= t.shared + t.own) break;
      uint32_t p[4];
      load_weights(p, b);
      add_weights(p);
#pragma unroll 1
      for (int n = n0; n < n1; ++n) {
        const bool all = b * 16 + 16 <= t.shared;
        tree_values(t, n, node_own(t, n), p, b, all);
        if (all) break;
      }
    }
  }

  // Keys of its own that node n has in the chunk; by a whole warp.
  __device__ __forceinline__ int node_own(const BatchChunk& t, int n) const {
    return own_keys(t, __shfl_sync(~0u, node_limit, n));
  }

  __device__ BatchChunk view(int chunk) const {
    BatchChunk t{};
    t.chunk = chunk;
    t.flat = item.segment.tree == 0 || a.block;
    t.shared = t.flat ? kChunkKeys : max(0, min(item.segment.context - chunk * kChunkKeys, kChunkKeys));
    t.own = own_keys(t, tile_limit);
    const int room = a.stages * kChunkKeys - t.shared;
    t.dense = item.segment.rows <= room;
    t.step = t.dense || t.flat ? item.nodes : max(1, room / max(t.own, 1));
    t.node1 = min(item.nodes, t.step);
    return t;
  }
  __device__ __forceinline__ int ring_rows(const BatchChunk& t) const {
    return t.shared + (t.flat ? 0 : t.dense ? item.segment.rows : (t.node1 - t.node0) * t.own);
  }

  // Lists what the chunk gathers first. Its loads come early: the committed chunks hide them.
  __device__ void list_chunk(int chunk) {
    const BatchChunk t = view(chunk);
    sync();
    if (!t.flat) {
      list_ancestors(t);
      sync();
    }
    list_sources(t, ring_rows(t));
    listed = chunk;
  }

  __device__ void batch_chunk(int chunk) {
    if (listed != chunk) list_chunk(chunk);
    BatchChunk t = view(chunk);
#pragma unroll 1
    for (;;) {
      sync();
      gather(ring_rows(t));
      copy_wait_all();
      sync();
      tree_group(t);
      if (t.node1 >= item.nodes) return;
      t.node0 = t.node1;
      t.node1 = min(item.nodes, t.node0 + t.step);
      sync();
      list_sources(t, ring_rows(t));
    }
  }

  // --- splits ---

  __device__ void begin_split() {
#pragma unroll
    for (int j = 0; j < C::kColTiles; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) o[j][r] = 0.f;
    sum[0] = sum[1] = 0.f;
    top[0] = top[1] = kNone;
  }

  // A row whose splits are all done goes to the output, any other to the item's partial result. What a split of several
  // gives is rounded to fp16 in units of a power of two that its greatest value sets.
  __device__ void end_split(int split) {
    const int shift = split_shift(item.bucket);
    float* shared_max = reinterpret_cast<float*>(smem + C::kMax);
    sync();  // kMax is in use until here
    float unit[2], fit[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = 0.f;
#pragma unroll
      for (int j = 0; j < C::kColTiles; ++j) m = fmaxf(m, fmaxf(fabsf(o[j][2 * h]), fabsf(o[j][2 * h + 1])));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
      m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
      if (lane % 4 == 0) shared_max[ng * C::kRows + mg * 16 + lane / 4 + 8 * h] = m;
      sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(~0u, sum[h], 1));
      sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(~0u, sum[h], 2));
    }
    sync();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float m = 0.f;
      for (int n = 0; n < C::kNg; ++n) m = fmaxf(m, shared_max[n * C::kRows + mg * 16 + lane / 4 + 8 * h]);
      const int exponent = min(max(static_cast<int>(__float_as_uint(m) >> 23), 15), 253);
      unit[h] = __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23);  // the greatest value is below 2^15 units
      fit[h] = __uint_as_float(static_cast<uint32_t>(268 - exponent) << 23);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int first = oldest[h] >> shift, last = (limit[h] - 1) >> shift;
      if (limit[h] == 0 || split < first || split > last) continue;
      const int row = mg * 16 + lane / 4 + 8 * h;
      if (first == last)
        store_result(h, row, __frcp_rn(sum[h]));
      else if (a.whole)
        fold_split(h, row, fit[h], unit[h], split > first, split == last);
      else
        store_partial(h, row, fit[h], unit[h]);
    }
    if (a.whole) sync();
  }

  __device__ __forceinline__ int64_t partial_row(int row) const {
    return static_cast<int64_t>(blockIdx.x) * C::kRows + row;
  }
  __device__ __forceinline__ void store_result(int h, int row, float inverse) {
    bf16* out = a.out + head_at(row, C::kV) + ng * C::kCols + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < C::kColTiles; ++j)
      *reinterpret_cast<uint32_t*>(out + j * 8) =
          pack_bf16_pair(__fmul_rn(o[j][2 * h], inverse), __fmul_rn(o[j][2 * h + 1], inverse));
  }
  __device__ __forceinline__ void store_partial(int h, int row, float fit, float unit) {
    __half* partial = static_cast<__half*>(a.partial) + partial_row(row) * C::kV + ng * C::kCols + lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < C::kColTiles; j += 4) {
      __half2 v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = to_units(o[j + i][2 * h], o[j + i][2 * h + 1], fit);
      *reinterpret_cast<uint4*>(partial + j * 8) = *reinterpret_cast<const uint4*>(v);
    }
    if (lane % 4 == 0 && ng == 0)
      a.stats[partial_row(row)] = make_float4(__fmul_rn(top[h], a.scale_log2), sum[h], unit, 0.f);
  }
  // The splits so far are in the item's partial result, in fp32, and their weights in its stats.
  __device__ void fold_split(int h, int row, float fit, float unit, bool again, bool done) {
    float* partial = static_cast<float*>(a.partial) + partial_row(row) * C::kV + ng * C::kCols + lane % 4 * 2;
    float4* stats = a.stats + partial_row(row) * kAttendWarps + ng;
    const float4 before = again ? *stats : make_float4(kNone, 0.f, 0.f, 0.f);
    const Fold f = fold_of(before.x, __fmul_rn(top[h], a.scale_log2));
    const float weights = fold(before.y, sum[h], f), inverse = __frcp_rn(weights);
    bf16* out = a.out + head_at(row, C::kV) + ng * C::kCols + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < C::kColTiles; ++j) {
      const float2 in_units = __half22float2(to_units(o[j][2 * h], o[j][2 * h + 1], fit));
      float2 v = again ? *reinterpret_cast<const float2*>(partial + j * 8) : make_float2(0.f, 0.f);
      v = make_float2(fold(v.x, __fmul_rn(in_units.x, unit), f), fold(v.y, __fmul_rn(in_units.y, unit), f));
      *reinterpret_cast<float2*>(partial + j * 8) = v;
      if (done)
        *reinterpret_cast<uint32_t*>(out + j * 8) = pack_bf16_pair(__fmul_rn(v.x, inverse), __fmul_rn(v.y, inverse));
    }
    __syncwarp(0xfu << (lane & 28));  // all have read it
    if (lane % 4 == 0) *stats = make_float4(f.max, weights, 0.f, 0.f);
  }
};

}  // namespace ddtree::cuda
