// Packed INT4 expert weights: where each weight and scale lies. Pure index arithmetic, for the repack kernel, the
// expert kernels and the tests on the host.
//
// A block holds 64 rows × 128 K of one expert: four tiles of 16 rows, each 1024 bytes of nibbles and 128 bytes of bf16
// scales. Blocks of a row block are contiguous along K, row blocks follow each other, then experts.
//   gate_up  [E, inter / 32, hidden / 128] blocks: rows 0 … 31 are gate rows, 32 … 63 the up rows of the same values
//   down     [E, hidden / 64, inter / 128] blocks
// Inside a tile, lane l of a warp finds its A fragments of mma.m16n8k16 (the wgmma ones are the same) in 16-byte
// vectors; rows are dealt so that gate and up of a value meet in one lane, and a lane's results are neighbours in
// memory.
#pragma once

#include <cstdint>

namespace ddtree::cuda {

inline constexpr int kBlockRows = 64;
inline constexpr int kBlockK = 128;
inline constexpr int kGroup = 32;  // weights that share a scale
inline constexpr int kTileRows = 16;
inline constexpr int kTiles = kBlockRows / kTileRows;
inline constexpr int kTileNibbleBytes = kTileRows * kBlockK / 2;
inline constexpr int kTileBytes = kTileNibbleBytes + kTileRows * (kBlockK / kGroup) * 2;
inline constexpr int kBlockBytes = kTiles * kTileBytes;

enum class Projection : uint8_t { kGateUp, kDown };

// Row r of a block as (tile, row group g = 0 … 7, half): MMA row g + 8·half of the tile.
struct TileRow {
  int tile, group, half;
};

constexpr TileRow tile_row(Projection p, int row) {
  if (p == Projection::kGateUp) return {row & 3, (row & 31) / 4, row >> 5};
  return {(row & 7) / 2, row / 8, row & 1};
}

// Its inverse.
constexpr int block_row(Projection p, TileRow at) {
  if (p == Projection::kGateUp) return 32 * at.half + 4 * at.group + at.tile;
  return 8 * at.group + 2 * at.tile + at.half;
}

// Byte offset of the scale of weight (row, k) in its block.
constexpr int scale_offset(Projection p, int row, int k) {
  const TileRow at = tile_row(p, row);
  return at.tile * kTileBytes + kTileNibbleBytes + at.group * 16 + at.half * 8 + (k / kGroup) * 2;
}

// A tile's nibbles are 256 words. Word i holds, for MMA row group g, k16 step s and lane c of a quad, the weights
// k = 16·s + 2c + {0, 1} and 16·s + 8 + 2c + {0, 1} of rows g and g + 8.
struct WordPlace {
  int group, step, quad_lane;
};

constexpr WordPlace word_place(int i) {
  const int lane = (i % 128) / 4;
  return {lane / 4, (i / 128) * 4 + i % 4, lane % 4};
}

// The packed word from 16 consecutive weights of row g (lo[0], lo[1]: checkpoint words, 8 nibbles each, the first in
// the low bits) and of row g + 8 (hi). Nibble n = 2·(upper half of the step) + half, plus 4 for odd k. The word is
// rotated by 3: then (w >> 4n) & 0x00780078 has a pair of weights in mantissa bits 3 … 6 of two bf16 values.
constexpr uint32_t pack_word(const uint32_t lo[2], const uint32_t hi[2], int quad_lane) {
  uint32_t w = 0;
  for (int upper = 0; upper < 2; ++upper) {
    const uint32_t pair_lo = (lo[upper] >> (8 * quad_lane)) & 0xff;
    const uint32_t pair_hi = (hi[upper] >> (8 * quad_lane)) & 0xff;
    const int n = 2 * upper;
    w |= (pair_lo & 15) << (4 * n) | (pair_lo >> 4) << (4 * (n + 4));
    w |= (pair_hi & 15) << (4 * (n + 1)) | (pair_hi >> 4) << (4 * (n + 5));
  }
  return w << 3 | w >> 29;
}

}  // namespace ddtree::cuda
