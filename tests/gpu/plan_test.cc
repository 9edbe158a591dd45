// The expert layer's plans: every block of weights is visited once, and what is promised fits into shared memory.
#include "backend/cuda/moe/plan.h"

#include <gtest/gtest.h>

#include "backend/cuda/moe/layout.h"

namespace ddtree::cuda {
namespace {

constexpr ExpertShape kShapes[] = {{384, 7168, 2048, 8}, {384, 7168, 256, 8},  {32, 256, 128, 4},
                                   {7, 384, 640, 3},     {512, 7168, 512, 16}, {1, 128, 128, 1}};
constexpr ExpertDevice kHopper{132, 232448, true}, kSmall{188, 101376, false};

TEST(ExpertPlan, StagesAreEightBlocksAtMostAndCoverTheMatrix) {
  for (const ExpertShape& shape : kShapes)
    for (int m = 0; m < kExpertModes; ++m) {
      const ExpertPlan plan = plan_experts(shape, kHopper, static_cast<ExpertMode>(m), 1);
      for (const PhasePlan& p : plan.phase) {
        EXPECT_LE(p.unit_tiles * p.side, 8 * kTiles);
        EXPECT_GE(p.units * p.unit_tiles, p.row_blocks * kTiles);
        EXPECT_LT((p.units - 1) * p.unit_tiles, p.row_blocks * kTiles);
        EXPECT_GE(p.stages * p.side, p.k_blocks);
        EXPECT_LT((p.stages - 1) * p.side, p.k_blocks);
        if (p.walk == Walk::kSplit) {
          EXPECT_EQ(p.side % p.segments, 0);
        }
      }
    }
}

// The sum's shape is fixed by K alone.
TEST(ExpertPlan, SegmentsDependOnKOnly) {
  for (const ExpertShape& shape : kShapes)
    for (int m = 1; m < kExpertModes; ++m)
      for (int p = 0; p < 2; ++p)
        EXPECT_EQ(plan_experts(shape, kHopper, static_cast<ExpertMode>(m), 1).phase[p].segments,
                  plan_experts(shape, kSmall, ExpertMode::kSplit32, 1000).phase[p].segments);
}

TEST(ExpertPlan, FitsSharedMemory) {
  for (const ExpertDevice& device : {kHopper, kSmall})
    for (const ExpertShape& shape : kShapes)
      for (int m = 0; m < kExpertModes; ++m) {
        const auto mode = static_cast<ExpertMode>(m);
        const int32_t rows = max_launch_rows(shape, device, mode);
        if (rows == 0) continue;
        EXPECT_LE(plan_experts(shape, device, mode, rows).shared_bytes, device.shared_bytes);
        EXPECT_GE(plan_experts(shape, device, mode, rows).ring_stages, 2);
      }
}

TEST(ExpertPlan, EveryRowCountHasAMode) {
  for (const ExpertDevice& device : {kHopper, kSmall})
    for (const ExpertShape& shape : kShapes)
      for (const int32_t rows : {1, 2, 9, 33, 90, 256, 1024, 1088, 5000})
        EXPECT_GT(max_launch_rows(shape, device, pick_expert_mode(shape, device, rows)), 0)
            << shape.experts << " experts, " << rows << " rows";
  EXPECT_EQ(max_launch_rows(kShapes[0], kHopper, pick_expert_mode(kShapes[0], kHopper, 1088)), kMaxRows);
  EXPECT_EQ(max_launch_rows(kShapes[0], kSmall, ExpertMode::kWide32), 0);
}

TEST(ExpertPlan, RefusesShapesByName) {
  const auto message = [](ExpertShape shape) { return check_expert_shape(shape).error().message; };
  EXPECT_NE(message({0, 256, 128, 1}).find("experts = 0"), std::string::npos);
  EXPECT_NE(message({513, 256, 128, 1}).find("1 to 512"), std::string::npos);
  EXPECT_NE(message({8, 200, 128, 1}).find("hidden = 200"), std::string::npos);
  EXPECT_NE(message({8, 256, 64, 1}).find("inter = 64"), std::string::npos);
  EXPECT_NE(message({8, 256, 128, 9}).find("top_k = 9"), std::string::npos);
  for (const ExpertShape& shape : kShapes) EXPECT_TRUE(check_expert_shape(shape).ok());
}

}  // namespace
}  // namespace ddtree::cuda
