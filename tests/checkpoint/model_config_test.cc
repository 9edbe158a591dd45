// The published configurations, against their models' tables.
#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "digits.h"
#include "temp_dir.h"

namespace ddtree {
namespace {

using ::testing::ElementsAre;
using testing::fixture;
using testing::has_digits;

ModelConfig parsed(const std::string& text, std::string_view generation = {}, const ConfigOptions& options = {}) {
  const Result<ModelConfig> config = parse_model_config(text, generation, options);
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? *config : ModelConfig{};
}

void expect_kimi_body(const ModelConfig& c) {
  EXPECT_EQ(c.vocab_size, 163840);
  EXPECT_EQ(c.hidden_size, 7168);
  EXPECT_EQ(c.intermediate_size, 18432);
  EXPECT_EQ(c.moe_intermediate_size, 2048);
  EXPECT_EQ(c.num_layers, 61);
  EXPECT_EQ(c.num_dense_layers(), 1);
  EXPECT_EQ(c.num_mtp_layers, 0);
  EXPECT_EQ(c.num_heads, 64);
  EXPECT_EQ(c.q_lora_rank, 1536);
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.qk_head_dim(), 192);
  EXPECT_EQ(c.kv_row_width(), 576);
  EXPECT_EQ(c.v_head_dim, 128);
  EXPECT_EQ(c.num_experts, 384);
  EXPECT_EQ(c.num_experts_per_token, 8);
  EXPECT_EQ(c.shared_intermediate_size(), 2048);
  EXPECT_EQ(c.num_groups, 1);
  EXPECT_EQ(c.scoring, Scoring::kSigmoid);
  EXPECT_EQ(c.topk_method, TopkMethod::kNoauxTc);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.routed_scaling_factor, 2.827);
  EXPECT_EQ(c.int4_group_size, 32);
  EXPECT_EQ(c.dtype, DType::kBF16);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.bos_id, 163584);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  EXPECT_EQ(c.max_position, 262144);
  EXPECT_EQ(c.rope_amplitude, 1);
  EXPECT_TRUE(has_digits(c.softmax_scale, "0.14467963"));
}

TEST(ModelConfig, KimiK26) {
  const ModelConfig c = parsed(fixture("kimi-k2.6.json"));
  expect_kimi_body(c);
  EXPECT_EQ(c.model_type, "kimi_k25");
  EXPECT_EQ(c.architecture, "KimiK25ForConditionalGeneration");
  EXPECT_THAT(c.eos_ids, ElementsAre(163586));
  EXPECT_TRUE(has_digits(c.inv_freq[14], "0.0044658487"));
  EXPECT_EQ(c.inv_freq.size(), 32u);
  EXPECT_FALSE(c.is_moe_layer(0));
  EXPECT_TRUE(c.is_moe_layer(1));
  EXPECT_TRUE(c.is_moe_layer(60));
}

TEST(ModelConfig, KimiK25WithItsGenerationConfig) {
  const ModelConfig c = parsed(fixture("kimi-k2.5.json"), R"({"max_length": 262144, "eos_token_id": 163586})");
  expect_kimi_body(c);
  EXPECT_THAT(c.eos_ids, ElementsAre(163585, 163586));
}

TEST(ModelConfig, KimiK2Thinking) {
  const ModelConfig c = parsed(fixture("kimi-k2-thinking.json"), R"({"eos_token_id": [163586, 163585]})");
  expect_kimi_body(c);
  EXPECT_EQ(c.model_type, "kimi_k2");
  EXPECT_THAT(c.eos_ids, ElementsAre(163585, 163586));
  EXPECT_TRUE(has_digits(c.inv_freq[14], "0.0087942868"));
}

TEST(ModelConfig, DeepseekV3) {
  const ModelConfig c = parsed(fixture("deepseek-v3.json"));
  EXPECT_EQ(c.num_heads, 128);
  EXPECT_EQ(c.num_dense_layers(), 3);
  EXPECT_EQ(c.num_mtp_layers, 1);
  EXPECT_EQ(c.num_experts, 256);
  EXPECT_EQ(c.num_groups, 8);
  EXPECT_EQ(c.topk_groups, 4);
  EXPECT_EQ(c.routed_scaling_factor, 2.5);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.int4_group_size, 0);
  EXPECT_EQ(c.vocab_size, 129280);
  EXPECT_EQ(c.bos_id, 0);
  EXPECT_THAT(c.eos_ids, ElementsAre(1));
  EXPECT_TRUE(has_digits(c.softmax_scale, "0.13523378"));
  EXPECT_TRUE(has_digits(c.inv_freq[19], "1.3705136e-3"));
}

TEST(ModelConfig, DeepseekV2Lite) {
  const ModelConfig c = parsed(fixture("deepseek-v2-lite.json"));
  EXPECT_EQ(c.q_lora_rank, 0);
  EXPECT_EQ(c.scoring, Scoring::kSoftmax);
  EXPECT_EQ(c.topk_method, TopkMethod::kGreedy);
  EXPECT_FALSE(c.norm_topk_prob);
  EXPECT_FALSE(c.has_router_bias());
  EXPECT_EQ(c.num_experts, 64);
  EXPECT_EQ(c.num_experts_per_token, 6);
  EXPECT_EQ(c.shared_intermediate_size(), 2816);
  EXPECT_EQ(c.routed_scaling_factor, 1);
  EXPECT_EQ(c.rope_amplitude, 1);
  EXPECT_TRUE(has_digits(c.softmax_scale, "0.11472139"));
}

TEST(ModelConfig, Moonlight) {
  const ModelConfig c = parsed(fixture("moonlight-16b-a3b.json"));
  EXPECT_EQ(c.q_lora_rank, 0);
  EXPECT_EQ(c.rope.type, RopeType::kPlain);
  EXPECT_EQ(c.rope.theta, 50000);
  EXPECT_EQ(c.scoring, Scoring::kSigmoid);
  EXPECT_TRUE(c.has_router_bias());
  EXPECT_EQ(c.routed_scaling_factor, 2.446);
  EXPECT_EQ(c.max_position, 8192);
  EXPECT_TRUE(has_digits(c.softmax_scale, "0.07216878"));
}

TEST(ModelConfig, Demo) {
  const Result<ModelConfig> loaded = load_model_config(DDTREE_SOURCE_DIR "/models/demo/target");
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const ModelConfig& c = *loaded;
  EXPECT_EQ(c.num_layers, 6);
  EXPECT_EQ(c.num_experts, 32);
  EXPECT_EQ(c.int4_group_size, 32);
  EXPECT_THAT(c.eos_ids, ElementsAre(4077));
  EXPECT_EQ(c.bos_id, 4076);
  EXPECT_TRUE(has_digits(c.softmax_scale, "0.0935652"));
  EXPECT_TRUE(has_digits(c.inv_freq[8], "0.06687403"));
  EXPECT_TRUE(has_digits(c.inv_freq[14], "8.794287e-3"));
  EXPECT_TRUE(has_digits(c.inv_freq[17], "3.189130e-3"));
  EXPECT_TRUE(has_digits(c.inv_freq[18], "5.685509e-4"));
  EXPECT_TRUE(has_digits(c.inv_freq[20], "2.891237e-4"));
  EXPECT_TRUE(has_digits(c.inv_freq[31], "7.011530e-6"));
}

TEST(ModelConfig, LatentNormEpsIsASwitch) {
  EXPECT_EQ(parsed(fixture("kimi-k2.6.json")).mla_lora_norm_eps, 1e-5);
  EXPECT_EQ(parsed(fixture("kimi-k2.6.json"), {}, {.mla_lora_norm_eps = 1e-6}).mla_lora_norm_eps, 1e-6);
}

TEST(ModelConfig, LoadsADirectoryAndNamesItInErrors) {
  const testing::TempDir dir;
  EXPECT_EQ(load_model_config(dir.path()).error().code, Code::kNotFound);
  dir.write("config.json", fixture("deepseek-v3.json"));
  EXPECT_THAT(load_model_config(dir.path())->eos_ids, ElementsAre(1));
  dir.write("generation_config.json", R"({"eos_token_id": [7, 1]})");
  EXPECT_THAT(load_model_config(dir.path())->eos_ids, ElementsAre(1, 7));
  dir.write("generation_config.json", R"({"eos_token_id": -1})");
  EXPECT_THAT(load_model_config(dir.path()).error().message,
              ::testing::StartsWith(dir.path() + "/generation_config.json: eos_token_id: is -1"));
  dir.write("config.json", "{}");
  EXPECT_THAT(load_model_config(dir.path()).error().message,
              ::testing::StartsWith(dir.path() + "/config.json: model_type is missing"));
}

}  // namespace
}  // namespace ddtree
