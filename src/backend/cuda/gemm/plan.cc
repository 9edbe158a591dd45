#include "backend/cuda/gemm/plan.h"

#include <algorithm>
#include <array>
#include <string>

#include "backend/cuda/gemm/layout.h"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

struct TileSize {
  int32_t rows, atoms;
};
constexpr std::array<TileSize, kGemmTileCount> kTileSizes = {{{8, 2}, {16, 2}, {32, 2}, {64, 2}, {64, 4}}};

constexpr int32_t kRingAlignment = 1024;  // of boxes under the 128-byte swizzle

// Slices are chosen as if for 132 multiprocessors, so that the summation tree is the same on every GPU.
constexpr int64_t kNominalSms = 132;

// Hundredths of the time of one 64 × 64 block: the longest CTA's blocks, with what the inputs add (less where two atoms
// share them), then the partial sums of its atoms and the merge.
int64_t slice_cost(int64_t row_blocks, int64_t k_blocks, int64_t slices) {
  const int64_t atoms = ceil_div(row_blocks * slices, kNominalSms);
  const int64_t blocks = atoms * ceil_div(k_blocks, slices);
  const int64_t merge = slices == 1 ? 0 : 900 + 300 * atoms + 50 * slices;
  return blocks * (atoms == 1 ? 125 : 112) + merge;
}

Status check_field(std::string_view what, const char* name, int32_t value, int32_t limit) {
  if (value >= 1 && value <= limit) return {};
  return Error{Code::kUnsupported, std::string(what) + " on the GPU: " + std::to_string(value) + " " + name +
                                       "; 1 to " + std::to_string(limit) + " are possible"};
}

}  // namespace

Status check_gemm_shape(const GemmShape& shape, std::string_view what) {
  TRY(check_field(what, "groups", shape.groups, 1 << 12));
  TRY(check_field(what, "outputs", shape.rows, 1 << 21));
  TRY(check_field(what, "inputs", shape.in, 1 << 20));
  if (shape.in % kGemmBlockK != 0)
    return Error{Code::kUnsupported, std::string(what) + " on the GPU: " + std::to_string(shape.in) +
                                         " inputs; the kernels need a multiple of " + std::to_string(kGemmBlockK)};
  if (static_cast<int64_t>(shape.groups) * gemm_group_blocks(shape) <= 1 << 20) return {};
  return Error{Code::kUnsupported, std::string(what) + " on the GPU: " + std::to_string(shape.groups) + " groups of " +
                                       std::to_string(shape.rows) + " outputs are too many"};
}

int32_t gemm_group_blocks(const GemmShape& shape) { return static_cast<int32_t>(ceil_div(shape.rows, kGemmBlockRows)); }

int64_t gemm_bytes(const GemmShape& shape) {
  return static_cast<int64_t>(shape.groups) * gemm_group_blocks(shape) * (shape.in / kGemmBlockK) * kGemmBlockBytes;
}

int32_t gemm_slices(const GemmShape& shape) {
  const int64_t row_blocks = static_cast<int64_t>(shape.groups) * gemm_group_blocks(shape);
  const int64_t k_blocks = shape.in / kGemmBlockK;
  int64_t best = 1;
  for (int64_t slices = 2; slices <= 16 && slices * 2 <= k_blocks; slices *= 2)
    if (slice_cost(row_blocks, k_blocks, slices) < slice_cost(row_blocks, k_blocks, best)) best = slices;
  return static_cast<int32_t>(best);
}

GemmTile pick_gemm_tile(const GemmShape& shape, const Gpu& gpu, int32_t rows) {
  if (rows <= 8) return GemmTile::k8;
  if (rows <= 16) return GemmTile::k16;
  if (rows <= 32) return GemmTile::k32;
  const int64_t atoms = static_cast<int64_t>(shape.groups) * gemm_group_blocks(shape) * gemm_slices(shape);
  const bool tall = gpu.wgmma && gemm_group_blocks(shape) >= 4 && atoms >= 4 * static_cast<int64_t>(gpu.sms);
  return tall ? GemmTile::k64Tall : GemmTile::k64;
}

GemmPlan plan_gemm(const GemmShape& shape, const Gpu& gpu, GemmTile tile, int32_t rows) {
  const TileSize size = kTileSizes[static_cast<size_t>(tile)];
  GemmPlan p{};
  p.tile = tile;
  p.tile_rows = size.rows;
  p.atoms = size.atoms;
  p.slices = gemm_slices(shape);
  p.row_blocks = shape.groups * gemm_group_blocks(shape);
  p.column_tiles = static_cast<int32_t>(ceil_div(rows, size.rows));
  const bool roomy = gpu.shared_bytes >= 160 << 10;
  p.weight_blocks = roomy || tile == GemmTile::k64Tall ? 4 : 2;
  p.input_blocks = size.rows <= 16 ? p.weight_blocks : roomy && tile != GemmTile::k64Tall ? 2 : 1;
  p.stage_bytes = p.weight_blocks * kGemmBlockBytes + p.input_blocks * size.rows * kGemmBlockK * 2;
  p.ring_offset =
      static_cast<int32_t>(round_up(kGemmBarrierBytes + size.rows * (kGemmBlockRows + 2) * 4, kRingAlignment));
  p.ring_stages = std::min(kMaxGemmStages, (gpu.shared_bytes - p.ring_offset) / p.stage_bytes);
  const int64_t groups = ceil_div(p.row_blocks, p.atoms);
  const int64_t work =
      p.column_tiles == 1 ? static_cast<int64_t>(p.row_blocks) * p.slices : groups * p.slices * p.column_tiles;
  p.grid = static_cast<int32_t>(std::min<int64_t>(gpu.sms, work));
  p.shared_bytes = p.ring_offset + p.ring_stages * p.stage_bytes;
  return p;
}

}  // namespace ddtree::cuda
