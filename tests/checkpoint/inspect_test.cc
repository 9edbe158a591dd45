// A fake of Kimi K2.6 from shapes alone: 64 shards of 595 GB in all whose data are holes. Totals are those published.
#include "checkpoint/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "model_tensors.h"

namespace ddtree {
namespace {

using testing::FileTensor;
using testing::fixture;
using ::testing::HasSubstr;
using testing::TempDir;

std::string shard_name(int number) {
  char name[64];
  std::snprintf(name, sizeof(name), "model-%05d-of-000064.safetensors", number);
  return name;
}

// As published: layer n in shard n + 1, then embedding, norm and head, the projector, the vision tower.
testing::Shards kimi_shards() {
  const testing::ModelShape m = testing::kimi_k26();
  testing::Shards shards;
  for (int64_t layer = 0; layer < m.layers; ++layer)
    shards[shard_name(static_cast<int>(layer) + 1)] = testing::layer_tensors(m, layer);
  shards[shard_name(62)] = testing::outer_tensors(m);
  for (FileTensor& tensor : testing::kimi_vision_tensors())
    shards[shard_name(tensor.name.starts_with("mm_projector") ? 63 : 64)].push_back(tensor);
  return shards;
}

class KimiInspection : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = std::make_unique<TempDir>();
    testing::write_sparse_shards(*dir_, kimi_shards());
    dir_->write("config.json", fixture("kimi-k2.6.json"));
    Result<Inspection> inspection = inspect(dir_->path(), {.tp = 8, .drafter_dir = ""});
    ASSERT_TRUE(inspection.ok()) << inspection.error().message;
    inspection_ = *std::move(inspection);
    ASSERT_TRUE(inspection_.target);
  }
  static void TearDownTestSuite() { dir_.reset(); }

  void SetUp() override { ASSERT_TRUE(inspection_.target); }

  static std::unique_ptr<TempDir> dir_;
  static Inspection inspection_;  // on eight ranks
};
std::unique_ptr<TempDir> KimiInspection::dir_;
Inspection KimiInspection::inspection_;

TEST_F(KimiInspection, TotalsMatchThePublishedModel) {
  const TargetReport& r = *inspection_.target;
  EXPECT_EQ(r.shards, 64);
  EXPECT_EQ(r.all.tensors, 208'550);
  EXPECT_EQ(r.all.bytes, 595'148'192'736);
  EXPECT_EQ(r.declared_bytes, 595'148'192'736);
  EXPECT_EQ(r.skipped.tensors, 335);
  EXPECT_EQ(r.all.tensors - r.skipped.tensors, 208'215);
  EXPECT_EQ(r.shapes.tensors, 60 * 384 * 3);
  EXPECT_EQ(r.shapes.bytes, 60 * 384 * 3 * 8);
  EXPECT_EQ(r.weights.total() + r.shapes.bytes + r.skipped.bytes, r.all.bytes);
  EXPECT_EQ(r.weights[WeightGroup::kRoutedExperts], int64_t{60} * 384 * 24'772'608);
  EXPECT_EQ(r.plan.weights.total(), 76'182'593'536);
  EXPECT_EQ(r.plan.kv_bytes_per_token, 70'272);
  EXPECT_FALSE(inspection_.drafter);
}

TEST_F(KimiInspection, ReportsAsTextAndJson) {
  const std::string text = to_text(inspection_);
  for (const char* part :
       {"595148192736", "208550", "76182593536", "70272", "INT4, groups of 32", "163586", "0.14467963"})
    EXPECT_THAT(text, HasSubstr(part));
  const Result<JsonDocument> document = parse_json(to_json(inspection_), "inspect");
  ASSERT_TRUE(document.ok()) << document.error().message;
  const JsonValue target = *document->root().get("target");
  EXPECT_EQ(*target.get("all")->get_int("bytes"), 595'148'192'736);
  EXPECT_EQ(*target.get("per_rank")->get("weights")->get_int("total"), 76'182'593'536);
  EXPECT_EQ(*target.get("config")->get_int("num_experts"), 384);
}

// The shapes of one of eight ranks, as serving engines publish them.
TEST_F(KimiInspection, ShapesOfOneOfEightRanks) {
  const ModelConfig config = *load_model_config(dir_->path());
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir_->path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  const Result<DeepseekSource> whole = map_deepseek(*checkpoint, config);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  const Result<DeepseekSource> rank = shard_deepseek(*whole, config, {.index = 5, .count = 8});
  ASSERT_TRUE(rank.ok()) << rank.error().message;
  EXPECT_EQ(describe(rank->embed.weight), "BF16 [20480, 7168]");
  EXPECT_EQ(describe(rank->head.weight), "BF16 [20480, 7168]");
  const LayerSource& dense = rank->layers[0];
  EXPECT_EQ(describe(dense.q_a.weight), "BF16 [1536, 7168]");
  EXPECT_EQ(describe(dense.q_b.weight), "BF16 [1536, 1536]");
  EXPECT_EQ(describe(dense.kv_a.weight), "BF16 [576, 7168]");
  EXPECT_EQ(describe(dense.kv_b.weight), "BF16 [2048, 512]");
  EXPECT_EQ(describe(dense.o.weight), "BF16 [7168, 1024]");
  EXPECT_EQ(dense.o.weight.row_stride, 8192);
  EXPECT_EQ(describe(dense.gate.weight), "BF16 [2304, 7168]");
  EXPECT_EQ(describe(dense.down.weight), "BF16 [7168, 2304]");
  const LayerSource& moe = rank->layers[60];
  EXPECT_EQ(describe(moe.router.weight), "BF16 [384, 7168]");
  EXPECT_EQ(describe(moe.router_bias), "F32 [384]");
  EXPECT_EQ(describe(moe.shared_up.weight), "BF16 [256, 7168]");
  EXPECT_EQ(describe(moe.shared_down.weight), "BF16 [7168, 256]");
  ASSERT_EQ(moe.expert_down.size(), 384u);
  EXPECT_EQ(describe(moe.expert_gate[383].weight), "I32 [256, 896]");
  EXPECT_EQ(describe(moe.expert_gate[383].scale), "BF16 [256, 224]");
  EXPECT_EQ(describe(moe.expert_down[383].weight), "I32 [7168, 32]");
  EXPECT_EQ(describe(moe.expert_down[383].scale), "BF16 [7168, 8]");
  EXPECT_EQ(moe.expert_down[383].in, 256);
  EXPECT_EQ(moe.expert_down[383].group_size, 32);

  const Result<MemoryPlan> alone = plan_memory(*whole, config, 1);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->weights.group, inspection_.target->weights.group);
}

TEST(Inspection, RefusesRanksThatDoNotDivide) {
  for (const int64_t tp : {0, 3, 7, 128}) {
    const Result<Inspection> inspection =
        inspect(DDTREE_SOURCE_DIR "/models/demo/target", {.tp = tp, .drafter_dir = ""});
    ASSERT_FALSE(inspection.ok()) << tp;
    EXPECT_EQ(inspection.error().code, Code::kInvalidArgument);
    EXPECT_THAT(inspection.error().message, HasSubstr(std::to_string(tp)));
  }
}

// The figures of the demo's own description, counted from its shapes: 9 · 1024 · 2 · … are in models/demo/README.md's
// table.
TEST(Inspection, DemoPair) {
  const std::string demo = DDTREE_SOURCE_DIR "/models/demo";
  const Result<Inspection> inspection = inspect(demo + "/target", {.tp = 1, .drafter_dir = demo + "/drafter"});
  ASSERT_TRUE(inspection.ok()) << inspection.error().message;
  ASSERT_TRUE(inspection->target && inspection->drafter);
  EXPECT_EQ(inspection->target->weights[WeightGroup::kEmbedding], 4096 * 256 * 2);
  EXPECT_EQ(inspection->target->weights[WeightGroup::kRoutedExperts],
            5 * 32 * 3 * (128 * 256 / 2 + 128 * 256 / 32 * 2));
  EXPECT_EQ(inspection->target->plan.kv_bytes_per_token, 6 * 576 * 2);
  EXPECT_EQ(inspection->drafter->weight_bytes, inspection->drafter->all.bytes);
  EXPECT_EQ(inspection->drafter->kv_bytes_per_token, 2 * 2 * 2 * 64 * 2);
  EXPECT_THAT(to_text(*inspection), HasSubstr("block 16"));
}

TEST(Inspection, ADrafterAlone) {
  const Result<Inspection> inspection = inspect(DDTREE_SOURCE_DIR "/models/demo/drafter");
  ASSERT_TRUE(inspection.ok()) << inspection.error().message;
  EXPECT_FALSE(inspection->target);
  ASSERT_TRUE(inspection->drafter);
  EXPECT_TRUE(parse_json(to_json(*inspection), "inspect").ok());
}

TEST(Inspection, RefusesADrafterOfAnotherTarget) {
  const TempDir dir;
  testing::ModelShape m;
  testing::write_model(dir, m, testing::model_tensors(m));
  const Result<Inspection> inspection =
      inspect(dir.path(), {.tp = 1, .drafter_dir = DDTREE_SOURCE_DIR "/models/demo/drafter"});
  ASSERT_FALSE(inspection.ok());
  EXPECT_THAT(inspection.error().message, HasSubstr("hidden_size is 256, the target's is 64"));
}

}  // namespace
}  // namespace ddtree
