// Packed bf16 weights: where each weight lies. Pure index arithmetic, for the repack, the kernels and the tests.
//
// A block holds 64 rows (outputs) × 64 K (inputs): four tiles of 16 rows, each four steps of 16 K. Blocks of a row
// block are contiguous along K; row blocks follow each other. In a tile's step lane l of a warp finds its A fragment of
// mma.m16n8k16 in bytes 16·l …: row pairs 2·(l / 4), + 1 are MMA rows l / 4 and l / 4 + 8, so two neighbouring outputs
// meet in one lane: gate and up of a value, or the two halves of a rotated pair, where the rows are packed so.
#pragma once

#include <cstdint>

namespace ddtree::cuda {

inline constexpr int kGemmBlockRows = 64;
inline constexpr int kGemmBlockK = 64;
inline constexpr int kGemmBlockBytes = kGemmBlockRows * kGemmBlockK * 2;
inline constexpr int kGemmTiles = kGemmBlockRows / 16;
inline constexpr int kGemmTileBytes = kGemmBlockBytes / kGemmTiles;
inline constexpr int kGemmStepBytes = 512;

// Byte offset of weight (row, k); k_blocks: blocks along K.
constexpr int64_t gemm_offset(int64_t row, int64_t k, int64_t k_blocks) {
  const int64_t block = row / kGemmBlockRows * k_blocks + k / kGemmBlockK;
  const int64_t tile = row % kGemmBlockRows / 16, step = k % kGemmBlockK / 16;
  const int64_t lane = row % 16 / 2 * 4 + k % 8 / 2, word = row % 2 + k % 16 / 8 * 2;
  return block * kGemmBlockBytes + tile * kGemmTileBytes + step * kGemmStepBytes + lane * 16 + word * 4 + k % 2 * 2;
}

}  // namespace ddtree::cuda
