// The packed INT4 layout of the GPU's experts, from the point of view of the lanes that will read it.
#include "backend/cuda/moe/layout.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <set>
#include <vector>

namespace ddtree::cuda {
namespace {

using Nibbles = std::array<std::array<int, kBlockK>, kBlockRows>;

Nibbles random_block() {
  std::mt19937 random(3);
  Nibbles q;
  for (auto& row : q)
    for (int& v : row) v = static_cast<int>(random() % 16);
  return q;
}

// What pack_kernel does with one block.
std::vector<uint32_t> pack(Projection p, const Nibbles& q) {
  std::vector<uint32_t> out(kTiles * 256);
  for (int tile = 0; tile < kTiles; ++tile)
    for (int i = 0; i < 256; ++i) {
      const WordPlace at = word_place(i);
      uint32_t words[2][2] = {};
      for (int half = 0; half < 2; ++half)
        for (int k = 0; k < 16; ++k)
          words[half][k / 8] |=
              static_cast<uint32_t>(
                  q[static_cast<size_t>(block_row(p, {tile, at.group, half}))][static_cast<size_t>(16 * at.step + k)])
              << (4 * (k % 8));
      out[static_cast<size_t>(tile * 256 + i)] = pack_word(words[0], words[1], at.quad_lane);
    }
  return out;
}

// The A fragment of mma.m16n8k16 by the PTX manual: register r of lane l holds row l / 4 + 8·(r & 1), columns
// 2·(l % 4) + 8·(r >> 1) and the next one. A lane reads words 4·lane … 4·lane + 3 of each half tile: steps 0 … 3, 4
// … 7.
TEST(ExpertLayout, LanesFindTheirFragments) {
  const Nibbles q = random_block();
  for (const Projection p : {Projection::kGateUp, Projection::kDown}) {
    const std::vector<uint32_t> packed = pack(p, q);
    for (int tile = 0; tile < kTiles; ++tile)
      for (int lane = 0; lane < 32; ++lane)
        for (int step = 0; step < 8; ++step) {
          const uint32_t w = packed[static_cast<size_t>(tile * 256 + step / 4 * 128 + lane * 4 + step % 4)];
          for (int r = 0; r < 4; ++r) {
            const uint32_t rotated = r == 0 ? w : w >> (4 * r) | w << (32 - 4 * r);
            const uint32_t pair = (rotated & 0x00780078u) | 0x41804180u;  // 16 + q in bf16, twice
            const auto row = static_cast<size_t>(block_row(p, {tile, lane / 4, r & 1}));
            const auto k = static_cast<size_t>(16 * step + 2 * (lane % 4) + 8 * (r >> 1));
            EXPECT_EQ(static_cast<int>((pair & 0x7f) >> 3), q[row][k]);
            EXPECT_EQ(static_cast<int>((pair >> 16 & 0x7f) >> 3), q[row][k + 1]);
          }
        }
  }
}

TEST(ExpertLayout, RowsAndScalesFillABlock) {
  for (const Projection p : {Projection::kGateUp, Projection::kDown}) {
    std::set<int> offsets;
    for (int row = 0; row < kBlockRows; ++row) {
      EXPECT_EQ(block_row(p, tile_row(p, row)), row);
      for (int k = 0; k < kBlockK; k += kGroup) offsets.insert(scale_offset(p, row, k));
    }
    EXPECT_EQ(offsets.size(), 256u);
    for (const int at : offsets) EXPECT_GE(at % kTileBytes, kTileNibbleBytes);
    EXPECT_LT(*offsets.rbegin(), kBlockBytes);
  }
}

// A lane reads 16 bytes of scales: groups 0 … 3 of row g, then of row g + 8.
TEST(ExpertLayout, ScalesOfALane) {
  for (const Projection p : {Projection::kGateUp, Projection::kDown})
    for (int tile = 0; tile < kTiles; ++tile)
      for (int g = 0; g < 8; ++g)
        for (int half = 0; half < 2; ++half)
          for (int j = 0; j < 4; ++j)
            EXPECT_EQ(scale_offset(p, block_row(p, {tile, g, half}), j * kGroup),
                      tile * kTileBytes + kTileNibbleBytes + g * 16 + half * 8 + j * 2);
}

// Gate and up of a value must meet in a lane: rows r and 32 + r of a block are halves of the same MMA row pair.
TEST(ExpertLayout, GateAndUpMeet) {
  for (int r = 0; r < 32; ++r) {
    const TileRow gate = tile_row(Projection::kGateUp, r), up = tile_row(Projection::kGateUp, 32 + r);
    EXPECT_EQ(gate.tile, up.tile);
    EXPECT_EQ(gate.group, up.group);
    EXPECT_EQ(gate.half + 1, up.half);
  }
}

}  // namespace
}  // namespace ddtree::cuda
