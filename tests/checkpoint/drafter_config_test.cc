#include "checkpoint/drafter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "digits.h"
#include "temp_dir.h"

namespace ddtree {
namespace {

using ::testing::ElementsAre;
using testing::fixture;
using testing::has_digits;
using ::testing::HasSubstr;

DrafterConfig parsed(const std::string& text, const DrafterOptions& options = {}) {
  const Result<DrafterConfig> config = parse_drafter_config(text, options);
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? *config : DrafterConfig{};
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

void expect_error(const std::string& text, Code code, const std::string& part) {
  const Result<DrafterConfig> config = parse_drafter_config(text);
  ASSERT_FALSE(config.ok()) << part;
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_THAT(config.error().message, HasSubstr("config.json: "));
  EXPECT_THAT(config.error().message, HasSubstr(part));
}

TEST(DrafterConfig, KimiWithTheOuterBlockSize) {
  const DrafterConfig c = parsed(fixture("kimi-k2.6-dflash.json"));
  EXPECT_EQ(c.block_size, 8);
  EXPECT_EQ(c.mask_token_id, 163838);
  EXPECT_THAT(c.target_layer_ids, ElementsAre(1, 12, 24, 35, 47, 58));
  EXPECT_EQ(c.num_taps(), 6);
  EXPECT_EQ(c.num_layers, 6);
  EXPECT_EQ(c.num_heads, 64);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.num_target_layers, 61);
  EXPECT_EQ(c.rms_norm_eps, 1e-5);
  for (const DrafterLayerConfig& layer : c.layers) {
    EXPECT_EQ(layer.window, 0);
    EXPECT_FALSE(layer.causal_block);
  }
  EXPECT_EQ(c.inv_freq.size(), 64u);
  EXPECT_EQ(c.rope_amplitude, 1);
}

TEST(DrafterConfig, AmplitudeIsASwitch) {
  EXPECT_TRUE(has_digits(parsed(fixture("kimi-k2.6-dflash.json"), {.amplitude = YarnAmplitude::kLegacy}).rope_amplitude,
                         "1.41588831"));
  EXPECT_EQ(parsed(fixture("qwen3.6-27b-dflash.json"), {.amplitude = YarnAmplitude::kLegacy}).rope_amplitude, 1);
}

TEST(DrafterConfig, QwenWithTheInnerBlockSizeAndSlidingLayers) {
  const std::string text = fixture("qwen3.6-27b-dflash.json");
  const DrafterConfig c = parsed(text);
  EXPECT_EQ(c.block_size, 16);
  EXPECT_EQ(c.rope.theta, 1e7);
  ASSERT_EQ(c.layers.size(), 5u);
  EXPECT_EQ(c.layers[3].window, 2048);
  EXPECT_TRUE(c.layers[3].causal_block);
  EXPECT_EQ(c.layers[4].window, 0);
  EXPECT_FALSE(c.layers[4].causal_block);
  const DrafterConfig told = parsed(replaced(text, "\"head_dim\"", "\"is_causal\": false, \"head_dim\""));
  EXPECT_EQ(told.layers[3].window, 2048);
  EXPECT_FALSE(told.layers[3].causal_block);
}

TEST(DrafterConfig, WithoutLayerTypesTheWindowRuleDecides) {
  std::string text = replaced(fixture("kimi-k2.6-dflash.json"), "\"layer_types\"", "\"unused\"");
  EXPECT_EQ(parsed(text).layers[5].window, 0);
  text = replaced(text, "\"use_sliding_window\": false", "\"use_sliding_window\": true");
  text = replaced(text, "\"max_window_layers\": 6", "\"max_window_layers\": 4");
  text = replaced(text, "\"sliding_window\": null", "\"sliding_window\": 1024");
  const DrafterConfig c = parsed(text);
  EXPECT_EQ(c.layers[3].window, 0);
  EXPECT_EQ(c.layers[4].window, 1024);
}

TEST(DrafterConfig, RefusesByName) {
  const std::string text = fixture("kimi-k2.6-dflash.json");
  for (const char* other : {"DFlash2DraftModel", "DSparkDraftModel", "Qwen3ForCausalLM"})
    expect_error(replaced(text, "DFlashDraftModel", other), Code::kUnsupported, std::string("\"") + other + "\"");
  expect_error(replaced(text, "\"architectures\"", "\"unused\""), Code::kInvalidArgument, "architectures is missing");
  expect_error(replaced(text, "\"dflash_config\": {", "\"dflash_config\": {\"selector_rank\": 256,"),
               Code::kUnsupported, "dflash_config.selector_rank");
  expect_error(replaced(text, "\"dflash_config\": {", "\"dflash_config\": {\"output_multiplier\": 0.5,"),
               Code::kUnsupported, "dflash_config.output_multiplier");
  EXPECT_TRUE(
      parse_drafter_config(replaced(text, "\"dflash_config\": {", "\"dflash_config\": {\"output_multiplier\": 1.0,"))
          .ok());
  expect_error(replaced(text, "\"dtype\"", "\"quantization_config\": {}, \"dtype\""), Code::kUnsupported,
               "quantization_config");
  expect_error(replaced(text, "\"attention_bias\": false", "\"attention_bias\": true"), Code::kUnsupported,
               "attention_bias");
  expect_error(replaced(text, "\"full_attention\"", "\"linear_attention\""), Code::kUnsupported, "layer_types[0]");
}

TEST(DrafterConfig, RefusesImpossibleValues) {
  const std::string text = fixture("kimi-k2.6-dflash.json");
  const auto bad = [&](const std::string& from, const std::string& to, const std::string& part) {
    expect_error(replaced(text, from, to), Code::kInvalidArgument, part);
  };
  bad("\"block_size\": 8", "\"block_size\": 1", "block_size: is 1, must be an integer from 2 to 256");
  bad("\"block_size\": 8", "\"block_size\": null", "block_size is null");
  bad("\"dflash_config\": {", "\"dflash_config\": {\"block_size\": 7,",
      "dflash_config.block_size: is 7 but the outer block_size is 8");
  bad("\"dflash_config\"", "\"unused\"", "dflash_config is missing");
  bad("163838", "163840", "dflash_config.mask_token_id: is 163840");
  bad("58", "61", "dflash_config.target_layer_ids[5]: is 61");
  bad("58", "47", "dflash_config.target_layer_ids[5]: is 47 after 47, must ascend");
  bad("\"target_layer_ids\"", "\"unused\"", "dflash_config.target_layer_ids is missing");
  bad("\"head_dim\": 128", "\"head_dim\": 127", "head_dim: is 127, must be even");
  bad("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7", "num_key_value_heads: is 7, does not divide");
  bad("\"num_hidden_layers\": 6", "\"num_hidden_layers\": 5", "layer_types: has 6 entries, num_hidden_layers is 5");
  bad("\"full_attention\"", "\"sliding_attention\"", "sliding_window is null");
  for (const char* field : {"\"hidden_size\": 7168", "\"intermediate_size\": 18432", "\"num_attention_heads\": 64",
                            "\"max_position_embeddings\": 262144", "\"vocab_size\": 163840"}) {
    const std::string name = std::string(field).substr(0, std::string(field).find(':'));
    for (const char* value : {"0", "-1", "4611686018427387904", "null"}) {
      const std::string whole = replaced(text, field, name + ": " + value);
      EXPECT_FALSE(parse_drafter_config(whole).ok()) << field << value;
    }
  }
}

TEST(DrafterConfig, VocabularyLimits) {
  const std::string text = replaced(fixture("kimi-k2.6-dflash.json"), "163838", "1");
  const auto with_vocab = [&](const char* size) { return replaced(text, "163840", size); };
  EXPECT_EQ(parsed(with_vocab("2")).vocab_size, 2);
  EXPECT_EQ(parsed(with_vocab("8388608")).vocab_size, 8388608);
  for (const char* size : {"1", "8388609"})
    expect_error(with_vocab(size), Code::kInvalidArgument,
                 std::string("vocab_size: is ") + size + ", must be an integer from 2 to 8388608");
}

TEST(DrafterConfig, FitsItsTargetOnly) {
  const ModelConfig target = *parse_model_config(fixture("kimi-k2.6.json"));
  const DrafterConfig drafter = parsed(fixture("kimi-k2.6-dflash.json"));
  EXPECT_TRUE(check_drafter_fits(drafter, target).ok());
  const auto refused = [&](auto change, const char* part) {
    DrafterConfig other = drafter;
    change(other);
    const Status status = check_drafter_fits(other, target);
    ASSERT_FALSE(status.ok()) << part;
    EXPECT_THAT(status.error().message, HasSubstr(part));
  };
  refused([](DrafterConfig& c) { c.hidden_size = 5120; }, "hidden_size is 5120, the target's is 7168");
  refused([](DrafterConfig& c) { c.vocab_size = 9; }, "vocab_size is 9");
  refused([](DrafterConfig& c) { c.num_target_layers = 48; }, "num_target_layers is 48");
  refused([](DrafterConfig& c) { c.num_target_layers = 0, c.target_layer_ids.back() = 61; }, "target_layer_ids is 61");
}

TEST(DrafterConfig, Demo) {
  const Result<DrafterConfig> c = load_drafter_config(DDTREE_SOURCE_DIR "/models/demo/drafter");
  ASSERT_TRUE(c.ok()) << c.error().message;
  EXPECT_EQ(c->block_size, 16);
  EXPECT_EQ(c->mask_token_id, 4093);
  EXPECT_THAT(c->target_layer_ids, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(c->rope.theta, 50000);
}

}  // namespace
}  // namespace ddtree
