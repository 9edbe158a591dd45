// How attention is cut into work: pure arithmetic, the same on the host and in the kernels.
//
// Keys come in chunks of 64 by absolute position. A row's chunks are cut into splits whose size depends on the number
// of keys that the row sees and on nothing else; partial results of its splits are folded in ascending order. So a
// row's sum has one shape, whatever else is in the batch. A tile is up to 64 (query head, row) pairs of one segment
// that share a key head; rows of different buckets never share an item. An item is one tile × one split, or × all of
// its splits.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ddtree::cuda {

inline constexpr int32_t kChunkKeys = 64;
inline constexpr int32_t kBuckets = 4;
inline constexpr int32_t kTileNodes = 16;  // rows of the batch in a tile, at most

// One stream's rows, as Segment of backend/batch.h, with its pages at first_page of the page table.
struct AttendSegment {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t context = 0;
  int32_t tree = 0;  // 1: the batch's ancestors say which rows a row sees; 0: those up to itself
  int32_t first_page = 0;
};

constexpr int32_t div_up(int32_t a, int32_t b) { return (a + b - 1) / b; }

// --- splits: a function of the keys that a row sees ---

constexpr int32_t bucket_keys(int32_t bucket) { return bucket == kBuckets - 1 ? INT32_MAX : 4096 << 2 * bucket; }
constexpr int32_t bucket_of(int32_t keys) { return keys <= 4096 ? 0 : keys <= 16384 ? 1 : keys <= 65536 ? 2 : 3; }
constexpr int32_t split_shift(int32_t bucket) { return 7 + bucket; }  // log2 of the keys of a split
constexpr int32_t split_keys(int32_t bucket) { return 1 << split_shift(bucket); }

// --- tiles ---

struct Tiling {
  int32_t kv_heads = 1;
  int32_t group = 1;        // query heads of a key head
  int32_t head_tile = 1;    // of them in a tile
  int32_t head_tiles = 1;   // tiles that a group needs
  int32_t nodes = 1;        // rows of the batch in a tile
  int32_t inverse = 65536;  // 2^16 / head_tile, rounded up

  // Row of the batch, in its tile, of a row of the tile (below 64).
  constexpr int32_t node_of(int32_t row) const { return row * inverse >> 16; }

  constexpr int32_t node_tiles(int32_t rows) const { return div_up(rows, nodes); }
  // Tiles of a segment: column = (key head · head_tiles + head tile) · node_tiles + node tile.
  constexpr int32_t columns(int32_t rows) const { return kv_heads * head_tiles * node_tiles(rows); }
};

constexpr Tiling make_tiling(int32_t heads, int32_t kv_heads, int32_t tile_rows) {
  const int32_t group = heads / kv_heads, head_tile = group < tile_rows ? group : tile_rows;
  return {kv_heads,
          group,
          head_tile,
          div_up(group, head_tile),
          std::min(tile_rows / head_tile, kTileNodes),
          div_up(65536, head_tile)};
}

// --- items: bucket by bucket, split by split, column by column ---

struct SegmentWork {
  int32_t first_bucket = 0, last_bucket = 0;
  int32_t keys = 0;     // that its last row sees
  int32_t columns = 0;  // tiles
  bool whole = false;   // an item takes all splits of its tile

  constexpr int32_t splits(int32_t bucket) const {
    const int32_t most = keys < bucket_keys(bucket) ? keys : bucket_keys(bucket);
    return ((most - 1) >> split_shift(bucket)) + 1;
  }
  constexpr int32_t bucket_items(int32_t bucket) const { return columns * (whole ? 1 : splits(bucket)); }
  constexpr int32_t items() const {
    int32_t n = 0;
    for (int32_t b = first_bucket; b <= last_bucket; ++b) n += bucket_items(b);
    return n;
  }
};

// block: every row sees every row of the segment.
constexpr SegmentWork segment_work(const AttendSegment& s, const Tiling& tiling, bool block, bool whole) {
  if (s.rows == 0) return {0, -1, 0, 0, whole};
  const int32_t keys = s.context + s.rows;
  return {bucket_of(block ? keys : s.context + 1), bucket_of(keys), keys, tiling.columns(s.rows), whole};
}

}  // namespace ddtree::cuda
