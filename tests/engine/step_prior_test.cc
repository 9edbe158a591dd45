// The prior of a small model, counted by hand.

#include "engine/step_prior.h"

#include <gtest/gtest.h>

namespace ddtree {
namespace {

ModelConfig target() {
  ModelConfig c;
  c.hidden_size = 10;
  c.vocab_size = 100;
  c.num_layers = 2;
  c.num_heads = 1;
  c.kv_lora_rank = 5;
  c.qk_nope_head_dim = 3;
  c.qk_rope_head_dim = 2;
  c.v_head_dim = 4;
  c.intermediate_size = 20;
  c.moe_intermediate_size = 6;
  c.first_dense_layers = 1;
  c.num_experts = 8;
  c.num_experts_per_token = 2;
  c.num_shared_experts = 1;
  return c;
}

// A byte and an operation a millisecond. Attention: 50 + 105 + 40 weights a layer; dense MLP 600; shared expert 180,
// router 80; head 1000: 2250 that every row uses. An expert has 180.
TEST(StepPrior, CountsTheTargetsWeights) {
  const StepPrior prior = step_prior(target(), nullptr, {1, 2, 0, 1});
  EXPECT_DOUBLE_EQ(prior.fixed_ms, 2250 * 2);
  EXPECT_DOUBLE_EQ(prior.row_ms, 2 * (2250 + 2 * 180));
  EXPECT_DOUBLE_EQ(prior.expert_ms, 180 * 2);
  EXPECT_DOUBLE_EQ(prior.key_ms, 2 * 2 * (7 + 5));
  EXPECT_EQ(prior.experts, 8);
  EXPECT_EQ(prior.top_k, 2);
  EXPECT_DOUBLE_EQ(prior.target_ms(1), 4500 + 5220 + 2 * 360);
}

TEST(StepPrior, AModelThatFitsTheCacheIsReadFaster) {
  EXPECT_DOUBLE_EQ(step_prior(target(), nullptr, {1, 2, 1e6, 1}).fixed_ms, 2250);
  EXPECT_DOUBLE_EQ(step_prior(target(), nullptr, {1, 2, 1000, 1}).fixed_ms, 4500);
}

TEST(StepPrior, CountsTheDraftersWeights) {
  DrafterConfig d;
  d.hidden_size = 8;
  d.vocab_size = 100;
  d.num_layers = 3;
  d.num_heads = 2;
  d.num_kv_heads = 1;
  d.head_dim = 4;
  d.intermediate_size = 16;
  d.block_size = 4;
  d.target_layer_ids = {0, 1};
  const StepPrior prior = step_prior(target(), &d, {1, 2, 0, 1});
  EXPECT_DOUBLE_EQ(prior.propose_ms, 2 * (3 * 8 * (16 + 8 + 48) + 800));
  EXPECT_DOUBLE_EQ(prior.stream_ms, 4 * prior.propose_ms);  // four rows
  EXPECT_DOUBLE_EQ(prior.observed_ms, 2 * (2 * 10 * 8 + 3 * 8 * 8));
}

}  // namespace
}  // namespace ddtree
