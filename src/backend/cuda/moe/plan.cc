#include "backend/cuda/moe/plan.h"

#include <algorithm>
#include <string>

#include "backend/cuda/moe/layout.h"
#include "base/checked.h"

namespace ddtree::cuda {
namespace {

constexpr int32_t kPartialRows = 132;  // 128 rows of a (segment, token), and 4 against bank conflicts
constexpr int32_t kRowPad = 16;        // bytes between activation rows: no bank conflicts for ldmatrix

Error bad(const char* field, int64_t value, const std::string& limit) {
  return Error{Code::kUnsupported,
               std::string("INT4 experts on the GPU: ") + field + " = " + std::to_string(value) + ", must be " + limit};
}

int32_t segments_of(int32_t k_blocks) { return k_blocks >= 4 ? 4 : k_blocks >= 2 ? 2 : 1; }

// mt: 16-row tiles of a warp in a split walk over at least 4 K blocks.
PhasePlan plan_phase(int32_t rows, int32_t k, Walk walk, int32_t mt) {
  PhasePlan p{};
  p.walk = walk;
  p.k_blocks = k / kBlockK;
  p.row_blocks = rows / kBlockRows;
  p.segments = segments_of(p.k_blocks);
  if (walk == Walk::kWide) {
    p.side = 1;
    p.warp_tiles = 4;
    p.unit_tiles = 32;
  } else if (walk == Walk::kWhole) {
    p.side = p.k_blocks;
    p.warp_tiles = 4 / p.side;
    p.unit_tiles = 8 * p.warp_tiles;
  } else {
    p.warp_tiles = p.segments < 4 ? 4 : mt;
    p.side = p.segments * 4 / p.warp_tiles;
    p.unit_tiles = 8 / p.segments * p.warp_tiles;
  }
  p.units = static_cast<int32_t>(ceil_div(p.row_blocks * kTiles, p.unit_tiles));
  p.stages = static_cast<int32_t>(ceil_div(p.k_blocks, p.side));
  return p;
}

// Where K is short, sums of segments that meet in shared memory cost more than they bring: whole stages for the least
// work, else wide ones.
Walk down_walk(ExpertMode mode, int32_t k_blocks) {
  if (split_tiles(mode) == 0 || (mode != ExpertMode::kSplit32 && k_blocks <= 4)) return Walk::kWide;
  return k_blocks == 1 || k_blocks == 2 || k_blocks == 4 ? Walk::kWhole : Walk::kSplit;
}

// Bits per (expert, row), tokens before each word of them, first slot of each expert, ids: built where the ring will
// be.
int32_t list_scratch_bytes(const ExpertShape& shape, int32_t rows) {
  const int32_t words = (rows + 31) / 32 | 1;
  return shape.experts * (words * 6 + 4) + 2 * rows * shape.top_k;
}

}  // namespace

Status check_expert_shape(const ExpertShape& shape) {
  if (shape.experts < 1 || shape.experts > kMaxExperts)
    return bad("experts", shape.experts, "1 to " + std::to_string(kMaxExperts));
  if (shape.top_k < 1 || shape.top_k > kMaxTopK || shape.top_k > shape.experts)
    return bad("top_k", shape.top_k, "1 to " + std::to_string(std::min(kMaxTopK, shape.experts)));
  if (shape.hidden < kBlockK || shape.hidden % kBlockK != 0) return bad("hidden", shape.hidden, "a multiple of 128");
  if (shape.inter < kBlockK || shape.inter % kBlockK != 0) return bad("inter", shape.inter, "a multiple of 128");
  return {};
}

int32_t split_tiles(ExpertMode mode) {
  switch (mode) {
    case ExpertMode::kSplit32: return 1;
    case ExpertMode::kSplit64: return 2;
    case ExpertMode::kSplit128: return 4;
    default: return 0;
  }
}

int32_t mode_tile_tokens(ExpertMode mode) {
  switch (mode) {
    case ExpertMode::kWide8: return 8;
    case ExpertMode::kWide16: return 16;
    case ExpertMode::kWide32: return 32;
    default: return 2 * split_tiles(mode);
  }
}

int32_t stage_bytes(ExpertMode mode) {
  const int32_t mt = split_tiles(mode), side = mt != 0 ? 16 / mt : 1, tokens = mode_tile_tokens(mode);
  const int32_t row_bytes = side * kBlockK * 2 + (mode == ExpertMode::kWide32 ? 0 : kRowPad);
  return static_cast<int32_t>(round_up(kStageWeightBytes + tokens * row_bytes, 128));
}

int32_t partial_bytes(ExpertMode mode) {
  return split_tiles(mode) == 0 ? 0 : 2 * 4 * mode_tile_tokens(mode) * kPartialRows * 4;
}

int32_t tile_bound(const ExpertShape& shape, int32_t rows, int32_t tile_tokens) {
  const int32_t slots = rows * shape.top_k;
  return std::min(slots, std::min(shape.experts, slots) + slots / tile_tokens);
}

ExpertPlan plan_experts(const ExpertShape& shape, const ExpertDevice& device, ExpertMode mode, int32_t rows) {
  ExpertPlan plan{};
  plan.mode = mode;
  const bool split = split_tiles(mode) != 0;
  plan.phase[0] = plan_phase(2 * shape.inter, shape.hidden, split ? Walk::kSplit : Walk::kWide, split_tiles(mode));
  plan.phase[1] = plan_phase(shape.hidden, shape.inter, down_walk(mode, shape.inter / kBlockK), 4);
  plan.tile_tokens = mode_tile_tokens(mode);
  plan.tiles_offset = kPartialOffset + partial_bytes(mode);
  plan.tokens_offset = plan.tiles_offset + 8 * tile_bound(shape, rows, plan.tile_tokens);
  plan.ring_offset = static_cast<int32_t>(round_up(plan.tokens_offset + 2 * rows * shape.top_k, 128));
  plan.ring_stages = std::clamp((device.shared_bytes - plan.ring_offset) / stage_bytes(mode), 0, kMaxRingStages);
  plan.shared_bytes = plan.ring_offset + plan.ring_stages * stage_bytes(mode);
  return plan;
}

int32_t max_launch_rows(const ExpertShape& shape, const ExpertDevice& device, ExpertMode mode) {
  if (mode == ExpertMode::kWide32 && !device.wgmma) return 0;
  const auto fits = [&](int32_t rows) {
    const ExpertPlan plan = plan_experts(shape, device, mode, rows);
    // Three warps that take stages in turn must not overtake each other by a whole ring.
    return plan.ring_stages >= (mode == ExpertMode::kWide32 ? 3 : 2) &&
           list_scratch_bytes(shape, rows) <= plan.ring_stages * stage_bytes(mode);
  };
  int32_t low = 0, high = kMaxRows;
  while (low < high) {
    const int32_t middle = (low + high + 1) / 2;
    if (fits(middle))
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

ExpertMode pick_expert_mode(const ExpertShape& shape, const ExpertDevice& device, int32_t rows) {
  // Measured on an H200 at Kimi K2.6's shapes (docs/kernels/experts.md): tiles as large as the experts' share of the
  // rows asks for, and below one row an expert, units as fine as the CTAs ask for.
  const double slots = static_cast<double>(rows) * shape.top_k, per_expert = slots / shape.experts;
  if (per_expert > 11 && max_launch_rows(shape, device, ExpertMode::kWide32) > 0) return ExpertMode::kWide32;
  if (per_expert > 2.7) return ExpertMode::kWide16;
  const double gate_up_rows = std::min<double>(slots, shape.experts) * 2 * shape.inter / device.sms;  // of a CTA
  const ExpertMode split = gate_up_rows > 250   ? ExpertMode::kSplit128
                           : gate_up_rows > 150 ? ExpertMode::kSplit64
                                                : ExpertMode::kSplit32;
  return max_launch_rows(shape, device, split) >= rows ? split
                                                       : ExpertMode::kWide8;  // 99 KB don't hold every split mode
}

}  // namespace ddtree::cuda
