// How y = W·x over all rows of a batch is cut into work for a launch: pure host arithmetic.
//
// An atom is 64 outputs × one slice of K, the grain of work; a unit is up to four atoms (outputs in a row, one slice) ×
// one tile of up to 64 batch rows, what a CTA takes at a time. Every CTA has one contiguous run of atoms. Slices depend
// on the shape alone and every output is one chain of m16n8k16 steps a slice, slices added in order: one summation tree
// whatever the row count, tile or GPU.
#pragma once

#include <cstdint>
#include <string_view>

#include "backend/cuda/gpu.h"
#include "base/result.h"

namespace ddtree::cuda {

// Several matrices of one size side by side (the heads of an attention), or one.
struct GemmShape {
  int32_t groups = 1;
  int32_t rows = 0;  // outputs of a group
  int32_t in = 0;    // inputs of a group, a multiple of 64
};

// Names `what`, the value and the limit where the kernels don't take the shape.
Status check_gemm_shape(const GemmShape& shape, std::string_view what);

int32_t gemm_group_blocks(const GemmShape& shape);  // 64-row blocks of a group
int64_t gemm_bytes(const GemmShape& shape);         // of the packed weights
int32_t gemm_slices(const GemmShape& shape);        // of K

// The kernel variants: batch rows of a tile, and whether a unit may have four atoms instead of two.
enum class GemmTile : uint8_t { k8, k16, k32, k64, k64Tall };
inline constexpr int kGemmTileCount = 5;
inline constexpr int32_t kMaxGemmRows = 256;  // of one launch; longer batches take several
inline constexpr int32_t kHeadRows = 64;      // the same where the head ranks outputs

struct GemmPlan {
  GemmTile tile;
  int32_t tile_rows;  // batch rows
  int32_t atoms;      // of a unit, at most
  int32_t slices;
  int32_t row_blocks;     // of all groups
  int32_t column_tiles;   // of the batch
  int32_t weight_blocks;  // of a stage: its atoms × K blocks, at most
  int32_t input_blocks;   // K blocks of a stage, at most
  int32_t stage_bytes;
  int32_t ring_stages;
  int32_t ring_offset;  // bytes into shared memory; before it the barriers and an atom's outputs
  int32_t grid;
  int32_t shared_bytes;
};

inline constexpr int32_t kMaxGemmStages = 16;
inline constexpr int32_t kGemmBarrierBytes = 512;

// Fastest tile for this many rows. The bits don't depend on it.
GemmTile pick_gemm_tile(const GemmShape& shape, const Gpu& gpu, int32_t rows);

GemmPlan plan_gemm(const GemmShape& shape, const Gpu& gpu, GemmTile tile, int32_t rows);

}  // namespace ddtree::cuda
