// How the expert layer is cut into work for a launch: pure host arithmetic, from shapes and the device's sizes.
//
// Tokens of one expert form tiles. A unit is what a CTA takes at a time: one tile × some rows of one projection × all
// of K. A stage is a unit's step along K: 8 blocks' worth of weights (64 rows × 128 K each) and the tile's activations.
// The sum over K is one fixed tree whatever the plan: `segments` partial sums, segment j over K blocks j, j + segments,
// … in order, then added in order. A plan only chooses who walks it:
//   wide   a stage is 512 rows × 1 K block; each consumer warp owns 64 rows and walks the segments one after another
//   split  a stage is fewer rows × several K blocks; each warp owns one segment, the sums meet in shared memory
//   whole  a stage is fewer rows × all of a short K; each warp owns its rows and all segments
#pragma once

#include <cstdint>

#include "base/result.h"

namespace ddtree::cuda {

enum class Walk : uint8_t { kWide, kSplit, kWhole };

// One of the two projections (0: gate_up, 1: down) of every expert.
struct PhasePlan {
  Walk walk;
  int32_t k_blocks;    // of an expert, 128 wide
  int32_t row_blocks;  // of an expert, 64 high
  int32_t segments;    // of the sum over K: 1, 2 or 4
  int32_t side;        // K blocks side by side in a stage
  int32_t warp_tiles;  // 16-row tiles of a consumer warp
  int32_t unit_tiles;  // 16-row tiles of a unit; the last unit of an expert may have fewer
  int32_t units;       // of an expert
  int32_t stages;      // of a unit
};

// The kernel variants: rows a gate_up unit has where K has at least 4 blocks, and tokens a tile at most.
enum class ExpertMode : uint8_t { kSplit32, kSplit64, kSplit128, kWide8, kWide16, kWide32 };
inline constexpr int kExpertModes = 6;

struct ExpertShape {
  int32_t experts = 0;
  int32_t hidden = 0;
  int32_t inter = 0;
  int32_t top_k = 0;
};

struct ExpertDevice {
  int32_t sms = 0;           // CTAs of a launch
  int32_t shared_bytes = 0;  // a CTA may use
  bool wgmma = false;        // sm_90
};

struct ExpertPlan {
  ExpertMode mode;
  PhasePlan phase[2];
  int32_t tile_tokens;   // tokens of a tile at most
  int32_t tiles_offset;  // bytes into shared memory
  int32_t tokens_offset;
  int32_t ring_offset;
  int32_t ring_stages;
  int32_t shared_bytes;
};

inline constexpr int32_t kMaxExperts = 512;
inline constexpr int32_t kMaxTopK = 16;
inline constexpr int32_t kMaxRows = 1088;  // of one launch
inline constexpr int32_t kMaxRingStages = 16;

// Shared memory before the tables: barriers, scan carries, a line of zeros, then partial sums (split modes).
inline constexpr int32_t kBarrierBytes = 640;
inline constexpr int32_t kZeroBytes = 256;
inline constexpr int32_t kPartialOffset = kBarrierBytes + kZeroBytes;
inline constexpr int32_t kStageWeightBytes = 8 * 4608;

// Names the field, its value and the limit where the kernels don't take the shape.
Status check_expert_shape(const ExpertShape& shape);

// 16-row tiles that a warp of a split mode owns in gate_up; 0 for the wide modes.
int32_t split_tiles(ExpertMode mode);
int32_t mode_tile_tokens(ExpertMode mode);
int32_t stage_bytes(ExpertMode mode);    // weights and activations
int32_t partial_bytes(ExpertMode mode);  // both buffers

// Tiles that `rows` tokens can form at most.
int32_t tile_bound(const ExpertShape& shape, int32_t rows, int32_t tile_tokens);

// The fastest mode at this many rows. The bits don't depend on it.
ExpertMode pick_expert_mode(const ExpertShape& shape, const ExpertDevice& device, int32_t rows);

// Rows that one launch of `mode` can take on this device; 0: the mode does not run there.
int32_t max_launch_rows(const ExpertShape& shape, const ExpertDevice& device, ExpertMode mode);

ExpertPlan plan_experts(const ExpertShape& shape, const ExpertDevice& device, ExpertMode mode, int32_t rows);

}  // namespace ddtree::cuda
