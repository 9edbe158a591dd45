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
  float* partial;  // [items, tile rows, v_dim] of splits, before the division
  float2* stats;   // [items, tile rows] the greatest score · scale_log2, the sum of weights
  Tiling tiling;
  int32_t segment_count, rows, heads, kv_heads, width, window, tile_rows, stages;
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
    const int split = index / work.columns, column = index % work.columns;
    item.first_split = split;
    item.end_split = a.whole ? work.splits(item.bucket) : split + 1;
    const int node_tiles = a.tiling.node_tiles(item.segment.rows);
    item.kv_head = column / (node_tiles * a.tiling.head_tiles);
    item.head0 = column / node_tiles % a.tiling.head_tiles * a.tiling.head_tile;
    item.heads = min(a.tiling.head_tile, a.tiling.group - item.head0);
    item.node0 = column % node_tiles * a.tiling.nodes;
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

inline constexpr float kNone = -INFINITY;
inline constexpr uint32_t kOnes = 0x3f803f80;  // two ones in bf16

// --- a tile's state and steps ---

template <class C>
struct AttendTile {
  const AttendKernelArgs& a;
  const AttendItem& item;
  uint8_t* smem;
  uint32_t base;  // shared address of smem
  int lane, mg, ng;

  // Rows g and g + 8: they see keys [oldest, limit); 0: none.
  int32_t limit[2], oldest[2], node[2], first_split[2], last_split[2];
  int32_t tile_limit, tile_oldest;

  float o[C::kColTiles][4], sum[4], top[2];
  float run_top[2], run_sum[2];  // of the splits before this one, where an item takes all

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
    int32_t node_limit = 0, node_oldest = INT32_MAX;
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
      const int row = mg * 16 + lane / 4 + 8 * h, n = row / a.tiling.head_tile;
      const bool valid = n < item.nodes && row % a.tiling.head_tile < item.heads;
      limit[h] = __shfl_sync(~0u, node_limit, n & 31);
      oldest[h] = __shfl_sync(~0u, node_oldest, n & 31);
      node[h] = valid ? n : -1;
      if (!valid) limit[h] = 0;
      first_split[h] = limit[h] == 0 ? 0 : oldest[h] / split_keys(item.bucket);
      last_split[h] = limit[h] == 0 ? -1 : (limit[h] - 1) / split_keys(item.bucket);
    }
  }

  // Element offset of a row's head in q (width kQk) or out (width kV).
  __device__ int64_t head_at(int row, int width) const {
    const int64_t t = item.segment.first_row + item.node0 + row / a.tiling.head_tile;
    const int head = item.kv_head * a.tiling.group + item.head0 + row % a.tiling.head_tile;
    return (t * a.heads + head) * width;
  }

  __device__ void load_queries() const {
    constexpr int kUnits = C::kQk / 8;
    for (int i = threadIdx.x; i < C::kRows * kUnits; i += kAttendThreads) {
      const int row = i / kUnits, u = i % kUnits;
      const bool valid = row / a.tiling.head_tile < item.nodes && row % a.tiling.head_tile < item.heads;
      copy_16(base + u / 8 * (C::kRows * 128) + row * 128 + ((u ^ row) & 7) * 16,
              a.q + (valid ? head_at(row, C::kQk) + u * 8 : 0), valid);
    }
  }

  // --- keys in shared memory; rows 64 … 127 of the ring are the second stage's ---

  static __device__ __forceinline__ int ring_row(int row) { return (row >> 6) * C::kStageBytes + (row & 63) * 128; }
  // Unit u of the row in shared memory from the cache's row.
  __device__ __forceinline__ const bf16* source(int64_t cache_row, int u) const {
    const int column =
        u * 8 < C::kQk ? item.kv_head * C::kQk + u * 8 : a.kv_heads * C::kQk + item.kv_head * C::kV + (u * 8 - C::kVAt);
    return a.cache + cache_row * a.width + column;
  }
  __device__ void load_page(int stage, int chunk) const {
    constexpr int kUnits = C::kSubs * 8;
    const int64_t first = static_cast<int64_t>(a.pages[item.segment.first_page + chunk]) * kChunkKeys;
    const uint32_t to = base + C::kRing + stage * C::kStageBytes;
    for (int i = threadIdx.x; i < kChunkKeys * kUnits; i += kAttendThreads) {
      const int row = i / kUnits, u = i % kUnits;
      copy_16(to + u / 8 * kSubBytes + row * 128 + ((u ^ row) & 7) * 16, source(first + row, u), true);
    }
  }
  // Rows of the cache listed at kSource, −1: zeros.
  __device__ void gather(int rows) const {
    constexpr int kUnits = C::kSubs * 8;
    const int32_t* list = reinterpret_cast<const int32_t*>(smem + C::kSource);
    for (int i = threadIdx.x; i < rows * kUnits; i += kAttendThreads) {
      const int row = i / kUnits, u = i % kUnits, from = list[row];
      copy_16(base + C::kRing + ring_row(row) + u / 8 * kSubBytes + ((u ^ row) & 7) * 16, source(max(from, 0), u),
              from >= 0);
    }
  }

  // --- S ---

  // s = Q · keys, tiles of 8 keys; key[j]: ring offset of this lane's row (lane % 8) of tile j.
  __device__ __forceinline__ void score(float (&s)[C::kKeyTiles][4], const int (&key)[C::kKeyTiles]) const {
    const int row = mg * 16 + lane % 16;
    const uint32_t q = base + row * 128 + ((lane / 16) ^ (lane % 8)) * 16;
    uint32_t k[C::kKeyTiles];
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) {
      k[j] = base + C::kRing + key[j] + ((lane / 8) ^ (key[j] / 128 % 8)) * 16;
#pragma unroll
      for (int r = 0; r < 4; ++r) s[j][r] = 0.f;
    }
#pragma unroll 1
    for (int sub = 0; sub < C::kQk / 64; ++sub) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // 32 of the 64 columns
        uint32_t qa[2][4];
        load_matrix_x4(qa[0], (q ^ (half * 64)) + sub * (C::kRows * 128));
        load_matrix_x4(qa[1], (q ^ (half * 64 + 32)) + sub * (C::kRows * 128));
#pragma unroll
        for (int j = 0; j < C::kKeyTiles; ++j) {
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
    for (int r = 0; r < 4; ++r) sum[r] = __fmul_rn(sum[r], keep[r / 2]);
#pragma unroll
    for (int j = 0; j < C::kColTiles; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) o[j][r] = __fmul_rn(o[j][r], keep[r / 2]);
  }

  // --- O += P · V, 16 keys at a time ---

  __device__ __forceinline__ void load_weights(uint32_t (&p)[4], int b) const {
    load_matrix_x4(p, (base + C::kP + (mg * 16 + lane % 16) * 128 + ((lane / 16) ^ (lane % 8)) * 16) ^ (b * 32));
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
      mma_m16n8k16(sum, p, kOnes, kOnes, sum);
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

  // A causal chunk or a block: every key has one slot, whoever looks.
  __device__ void flat_chunk(int chunk) {
    sync();
    if (threadIdx.x < kChunkKeys)
      reinterpret_cast<int32_t*>(smem + C::kSource)[threadIdx.x] = shared_key(chunk, threadIdx.x);
    sync();
    gather(kChunkKeys);
    copy_wait_all();
    sync();
    int key[C::kKeyTiles];
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) key[j] = (ng * C::kKeys + j * 8 + lane % 8) * 128;
    float s[C::kKeyTiles][4];
    score(s, key);
    mask(s, chunk * kChunkKeys, limit);
    softmax(s);
    add_values(0);
  }

  // Of a tree's chunk: keys below `shared` are committed; each row has its ancestors in the slots after them.
  struct TreeChunk {
    int32_t chunk, shared, own;  // own: slots that the deepest row fills
    bool dense;                  // all rows of the tree are in the ring, in order; else the ancestors, node by node
    int32_t node0, node1;        // of the tile, in the ring now
  };

  __device__ __forceinline__ int own_keys(const TreeChunk& t, int32_t keys) const {
    return max(0, min(keys - t.chunk * kChunkKeys, kChunkKeys) - t.shared);
  }

  // Rows of the tree in the slots of every node of the tile.
  __device__ void list_ancestors(const TreeChunk& t) const {
    if (threadIdx.x >= item.nodes) return;
    uint8_t* slots = smem + C::kTable + threadIdx.x * kChunkKeys;
    const int32_t own_row = item.node0 + static_cast<int32_t>(threadIdx.x);
    const uint64_t* words = a.ancestors + 4 * static_cast<int64_t>(item.segment.first_row + own_row);
    int slot = item.segment.context - t.chunk * kChunkKeys;  // of the root; negative: in an earlier chunk
    for (int w = 0; w < 4; ++w)
      for (uint64_t bits = words[w]; bits != 0 && slot < kChunkKeys; bits &= bits - 1, ++slot)
        if (slot >= 0) slots[slot] = static_cast<uint8_t>(w * 64 + __ffsll(static_cast<long long>(bits)) - 1);
    for (slot = max(slot, 0); slot < kChunkKeys; ++slot) slots[slot] = static_cast<uint8_t>(own_row);
  }

  // Ring row of a node's key; slots that it doesn't fill give one that it does.
  __device__ __forceinline__ int tree_row(const TreeChunk& t, int n, int own, int slot) const {
    slot = max(min(slot, t.shared + own - 1), 0);
    if (slot < t.shared) return slot;
    if (t.dense) return t.shared + smem[C::kTable + n * kChunkKeys + slot];
    return t.shared + (n - t.node0) * t.own + slot - t.shared;
  }

  __device__ void list_sources(const TreeChunk& t, int rows) const {
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

  __device__ __forceinline__ void tree_scores(float (&s)[C::kKeyTiles][4], const TreeChunk& t, int n, int own) const {
    int key[C::kKeyTiles];
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) key[j] = ring_row(tree_row(t, n, own, ng * C::kKeys + j * 8 + lane % 8));
    float fresh[C::kKeyTiles][4];
    score(fresh, key);
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j) select(s[j], fresh[j], n);
  }

  __device__ __forceinline__ void tree_values(const TreeChunk& t, int n, int own, const uint32_t (&p)[4], int b) {
    const uint32_t at = value_at(ring_row(tree_row(t, n, own, b * 16 + lane % 16)));
#pragma unroll
    for (int j = 0; j < C::kColTiles / 2; ++j) {
      uint32_t v[4];
      float d[4];
      load_values(v, at, j);
      mma_m16n8k16(d, p, v[0], v[1], o[2 * j]);
      select(o[2 * j], d, n);
      mma_m16n8k16(d, p, v[2], v[3], o[2 * j + 1]);
      select(o[2 * j + 1], d, n);
    }
  }

  // The chunk for the nodes whose keys are in the ring.
  __device__ void tree_group(const TreeChunk& t) {
    const int last = (mg * 16 + 15) / a.tiling.head_tile;
    const int n0 = max(t.node0, mg * 16 / a.tiling.head_tile), n1 = min(t.node1, last + 1);
    float s[C::kKeyTiles][4];
    int32_t end[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) end[h] = node[h] >= t.node0 && node[h] < t.node1 ? limit[h] : 0;
#pragma unroll
    for (int j = 0; j < C::kKeyTiles; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) s[j][r] = 0.f;
    for (int n = n0; n < n1; ++n) tree_scores(s, t, n, node_own(t, n));
    mask(s, t.chunk * kChunkKeys, end);
    softmax(s);
#pragma unroll 1
    for (int b = 0; b < 4; ++b) {
      if (b * 16 >= t.shared + t.own) break;
      uint32_t p[4];
      load_weights(p, b);
      mma_m16n8k16(sum, p, kOnes, kOnes, sum);
#pragma unroll 1
      for (int n = n0; n < n1; ++n) tree_values(t, n, node_own(t, n), p, b);
    }
  }

  // Keys of its own that node n has in the chunk.
  __device__ __forceinline__ int node_own(const TreeChunk& t, int n) const {
    return min(t.own, own_keys(t, a.position[item.segment.first_row + item.node0 + n] + 1));
  }

  __device__ void tree_chunk(int chunk) {
    TreeChunk t{};
    t.chunk = chunk;
    t.shared = max(0, min(item.segment.context - chunk * kChunkKeys, kChunkKeys));
    t.own = own_keys(t, tile_limit);
    const int room = a.stages * kChunkKeys - t.shared;
    t.dense = item.segment.rows <= room;
    const int step = t.dense ? item.nodes : max(1, room / max(t.own, 1));
    sync();
    list_ancestors(t);
    for (t.node0 = 0; t.node0 < item.nodes; t.node0 += step) {
      t.node1 = min(item.nodes, t.node0 + step);
      const int rows = t.shared + (t.dense ? item.segment.rows : (t.node1 - t.node0) * t.own);
      sync();
      list_sources(t, rows);
      sync();
      gather(rows);
      copy_wait_all();
      sync();
      tree_group(t);
    }
  }

  __device__ void batch_chunk(int chunk) {
    if (item.segment.tree != 0 && !a.block)
      tree_chunk(chunk);
    else
      flat_chunk(chunk);
  }

  // --- splits ---

  __device__ void begin_split() {
#pragma unroll
    for (int j = 0; j < C::kColTiles; ++j)
#pragma unroll
      for (int r = 0; r < 4; ++r) o[j][r] = 0.f;
#pragma unroll
    for (int r = 0; r < 4; ++r) sum[r] = 0.f;
    top[0] = top[1] = kNone;
  }

  // A row whose splits are all done goes to the output, any other to the item's partial result.
  __device__ void end_split(int split) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (split < first_split[h] || split > last_split[h]) continue;
      const int row = mg * 16 + lane / 4 + 8 * h;
      const bool again = a.whole && split > first_split[h];
      Fold f{__fmul_rn(top[h], a.scale_log2), 0.f, 1.f};
      float weights = sum[2 * h];
      if (again) {
        f = fold_of(run_top[h], f.max);
        weights = fold(run_sum[h], weights, f);
      }
      run_top[h] = f.max;
      run_sum[h] = weights;
      const bool done = a.whole ? split == last_split[h] : first_split[h] == last_split[h];
      store_row(h, row, f, again, done, __frcp_rn(weights));
      if (!a.whole && !done && lane % 4 == 0 && ng == 0)
        a.stats[static_cast<int64_t>(blockIdx.x) * C::kRows + row] = make_float2(f.max, weights);
    }
  }

  __device__ __forceinline__ void store_row(int h, int row, const Fold& f, bool again, bool done, float inverse) {
    const int column = ng * C::kCols + lane % 4 * 2;
    float* partial = a.partial + (static_cast<int64_t>(blockIdx.x) * C::kRows + row) * C::kV + column;
    bf16* out = a.out + head_at(row, C::kV) + column;
#pragma unroll
    for (int j = 0; j < C::kColTiles; ++j) {
      float2 v = make_float2(o[j][2 * h], o[j][2 * h + 1]);
      if (again) {
        const float2 before = *reinterpret_cast<const float2*>(partial + j * 8);
        v = make_float2(fold(before.x, v.x, f), fold(before.y, v.y, f));
      }
      if (done)
        *reinterpret_cast<uint32_t*>(out + j * 8) = pack_bf16_pair(__fmul_rn(v.x, inverse), __fmul_rn(v.y, inverse));
      else
        *reinterpret_cast<float2*>(partial + j * 8) = v;
    }
  }
};

}  // namespace ddtree::cuda
