#include "checkpoint/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "checkpoint/memory_plan.h"
#include "model_tensors.h"

namespace ddtree {
namespace {

using ::testing::HasSubstr;
using testing::ModelShape;
using testing::TempDir;

// How often each element, known by its address in the mapped file, is held by some rank.
class Coverage {
 public:
  void add(const TensorView& view) {
    const int64_t size = dtype_size(view.dtype);
    for (int64_t r = 0; r < view.rows(); ++r)
      for (int64_t i = 0; i < view.row_elements(); ++i)
        ++times_[static_cast<const char*>(view.data) + (r * view.row_stride + i) * size];
  }
  void add(const Linear& linear) {
    add(linear.weight);
    add(linear.scale);
  }
  void add_split(const DeepseekSource& s) {
    add(s.embed);
    add(s.head);
    for (const LayerSource& l : s.layers) {
      for (const Linear* linear :
           {&l.q_b, &l.kv_b, &l.o, &l.gate, &l.up, &l.down, &l.shared_gate, &l.shared_up, &l.shared_down})
        add(*linear);
      for (const auto* experts : {&l.expert_gate, &l.expert_up, &l.expert_down})
        for (const Linear& expert : *experts) add(expert);
    }
  }
  void add_replicated(const DeepseekSource& s) {
    add(s.norm);
    for (const LayerSource& l : s.layers) {
      for (const TensorView* view : {&l.attn_norm, &l.ffn_norm, &l.q_a_norm, &l.kv_a_norm, &l.router_bias}) add(*view);
      for (const Linear* linear : {&l.q_a, &l.kv_a, &l.router}) add(*linear);
    }
  }
  const std::map<const char*, int>& times() const { return times_; }

 private:
  std::map<const char*, int> times_;
};

ModelShape small_model() {
  ModelShape m;
  m.layers = 2;
  m.moe_inner = 128;
  m.experts = 2;
  return m;
}

struct Opened {
  TempDir dir;
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  DeepseekSource source;

  explicit Opened(const ModelShape& shape) {
    testing::write_model(dir, shape, testing::model_tensors(shape));
    config = *load_model_config(dir.path());
    checkpoint = std::make_unique<Checkpoint>(*Checkpoint::open(dir.path()));
    source = *load_deepseek(*checkpoint, config);
  }
};

TEST(Sharding, EveryElementIsHeldOnceOrOnEveryRank) {
  ModelShape plain = small_model();
  plain.group = 0;
  plain.q_lora = 0;
  for (const ModelShape& shape : {small_model(), plain}) {
    const Opened model(shape);
    for (const int64_t tp : {1, 2, 4}) {
      Coverage split, replicated, all_split, all_replicated;
      all_split.add_split(model.source);
      all_replicated.add_replicated(model.source);
      for (int64_t rank = 0; rank < tp; ++rank) {
        const Result<DeepseekSource> part = shard_deepseek(model.source, model.config, {.index = rank, .count = tp});
        ASSERT_TRUE(part.ok()) << part.error().message;
        split.add_split(*part);
        replicated.add_replicated(*part);
      }
      EXPECT_EQ(split.times(), all_split.times()) << tp;
      ASSERT_EQ(replicated.times().size(), all_replicated.times().size());
      for (const auto& [address, times] : replicated.times()) ASSERT_EQ(times, tp);
    }
  }
}

TEST(Sharding, PartsKeepTheirPlaces) {
  const Opened model(small_model());
  const DeepseekSource part = *shard_deepseek(model.source, model.config, {.index = 3, .count = 4});
  const LayerSource& whole = model.source.layers[1];
  const LayerSource& l = part.layers[1];
  EXPECT_EQ(l.q_b.weight.row<uint16_t>(0), whole.q_b.weight.row<uint16_t>(3 * 24));  // head 3 of 16 + 8 rows
  EXPECT_EQ(l.q_b.out, 24);
  EXPECT_EQ(l.kv_b.weight.row<uint16_t>(0), whole.kv_b.weight.row<uint16_t>(3 * 32));
  EXPECT_EQ(l.o.weight.row<uint16_t>(7), whole.o.weight.row<uint16_t>(7) + 3 * 16);
  EXPECT_EQ(l.expert_gate[1].weight.row<int32_t>(0), whole.expert_gate[1].weight.row<int32_t>(96));
  EXPECT_EQ(l.expert_gate[1].scale.row<uint16_t>(0), whole.expert_gate[1].scale.row<uint16_t>(96));
  EXPECT_EQ(l.expert_down[1].weight.row<int32_t>(5), whole.expert_down[1].weight.row<int32_t>(5) + 3 * 32 / 8);
  EXPECT_EQ(l.expert_down[1].scale.row<uint16_t>(5), whole.expert_down[1].scale.row<uint16_t>(5) + 3);
  EXPECT_EQ(l.expert_down[1].in, 32);
}

TEST(Sharding, RefusesWhatDoesNotDivide) {
  const Opened model(small_model());
  const auto message = [&](int64_t tp) {
    const Result<DeepseekSource> part = shard_deepseek(model.source, model.config, {.index = 0, .count = tp});
    EXPECT_FALSE(part.ok()) << tp;
    return part.ok() ? std::string() : part.error().message;
  };
  EXPECT_THAT(message(3),
              HasSubstr("tensor parallelism 3 does not fit this model: embed_tokens has 64 rows to divide"));
  EXPECT_THAT(message(8), HasSubstr("q_b_proj has 4 heads to divide"));
  ModelShape many_heads = small_model();
  many_heads.heads = 8;
  const Opened other(many_heads);
  EXPECT_THAT(shard_deepseek(other.source, other.config, {.index = 0, .count = 8}).error().message,
              HasSubstr("mlp.experts would have 16 of 128 columns on a rank, no multiple of group_size 32"));
}

TEST(MemoryPlan, CountsTheBytesOfEachGroup) {
  const Opened model(small_model());
  const WeightBytes n = count_bytes(model.source);
  EXPECT_EQ(n[WeightGroup::kEmbedding], 64 * 64 * 2);
  EXPECT_EQ(n[WeightGroup::kHead], 64 * 64 * 2);
  EXPECT_EQ(n[WeightGroup::kAttention], 2 * 2 * (32 * 64 + 96 * 32 + 56 * 64 + 128 * 48 + 64 * 64));
  EXPECT_EQ(n[WeightGroup::kDenseMlp], 2 * 3 * 96 * 64);
  EXPECT_EQ(n[WeightGroup::kRouter], 2 * 64 * 2 + 2 * 4);
  EXPECT_EQ(n[WeightGroup::kSharedExperts], 2 * 3 * 128 * 64);
  EXPECT_EQ(n[WeightGroup::kRoutedExperts], 2 * 3 * (128 * 64 / 2 + 128 * 64 / 32 * 2));
  EXPECT_EQ(n[WeightGroup::kNorms], 2 * (64 + 2 * (64 + 64 + 32 + 48)));
  EXPECT_EQ(kv_bytes_per_token(model.config), 2 * 56 * 2);
  EXPECT_EQ(kv_bytes_per_token(model.config, 1), 2 * 56);

  const MemoryPlan plan = *plan_memory(model.source, model.config, 2);
  EXPECT_EQ(plan.weights[WeightGroup::kRoutedExperts] * 2, n[WeightGroup::kRoutedExperts]);
  EXPECT_EQ(plan.weights[WeightGroup::kRouter], n[WeightGroup::kRouter]);
  EXPECT_EQ(plan.weights[WeightGroup::kNorms], n[WeightGroup::kNorms]);
  EXPECT_EQ(plan.weights[WeightGroup::kAttention], 2 * 2 * (32 * 64 + 48 * 32 + 56 * 64 + 64 * 48 + 64 * 32));
}

TEST(MemoryPlan, ATiedHeadCostsNothing) {
  ModelShape tied = small_model();
  tied.tied = true;
  const Opened model(tied);
  EXPECT_EQ(count_bytes(model.source)[WeightGroup::kHead], 0);
  EXPECT_EQ(plan_memory(model.source, model.config, 2)->weights[WeightGroup::kHead], 0);
}

}  // namespace
}  // namespace ddtree
