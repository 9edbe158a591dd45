// Every way a config.json can be wrong is an error that names the field, the value and the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/model_config.h"
#include "temp_dir.h"

namespace ddtree {
namespace {

using testing::fixture;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// `text` with the first occurrence of `from` replaced.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

void expect_error(const std::string& text, Code code, const std::string& part) {
  const Result<ModelConfig> config = parse_model_config(text);
  ASSERT_FALSE(config.ok()) << part;
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_THAT(config.error().message, StartsWith("config.json: "));
  EXPECT_THAT(config.error().message, HasSubstr(part));
}

// The line `"field": …` of a fixture gets another value, or goes away with `value` "".
std::string with_field(const std::string& text, const std::string& field, const std::string& value) {
  const size_t begin = text.find("\"" + field + "\": ");
  EXPECT_NE(begin, std::string::npos) << field;
  const size_t end = text.find('\n', begin);
  const bool comma = text[end - 1] == ',';
  const std::string line = value.empty() ? "\"unrelated\": 0" : "\"" + field + "\": " + value;
  return text.substr(0, begin) + line + (comma ? "," : "") + text.substr(end);
}

TEST(ModelConfigErrors, ImpossibleSizes) {
  const std::string text = fixture("kimi-k2-thinking.json");
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings",
        "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_layer_freq"}) {
    for (const char* value :
         {"0", "-1", "4611686018427387904", "18446744073709551615", "1e30", "2.5", "\"7\"", "[1]", "true"})
      expect_error(with_field(text, field, value), Code::kInvalidArgument, std::string(field) + ": is ");
  }
  for (const char* field : {"first_k_dense_replace", "n_shared_experts", "num_nextn_predict_layers"})
    for (const char* value : {"-1", "4611686018427387904", "0.5"})
      expect_error(with_field(text, field, value), Code::kInvalidArgument, std::string(field) + ": is ");
}

TEST(ModelConfigErrors, MissingFields) {
  const std::string text = fixture("kimi-k2-thinking.json");
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings",
        "num_attention_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "num_experts_per_tok", "moe_intermediate_size", "rms_norm_eps", "routed_scaling_factor", "model_type"})
    expect_error(with_field(text, field, ""), Code::kInvalidArgument, std::string(field) + " is missing");
}

TEST(ModelConfigErrors, MessagesCarryValueAndLimit) {
  const std::string text = fixture("kimi-k2-thinking.json");
  expect_error(with_field(text, "num_experts_per_tok", "385"), Code::kInvalidArgument,
               "num_experts_per_tok: is 385, must be an integer from 1 to 384");
  expect_error(with_field(text, "first_k_dense_replace", "62"), Code::kInvalidArgument,
               "first_k_dense_replace: is 62, must be an integer from 0 to 61");
  expect_error(with_field(fixture("kimi-k2.6.json"), "hidden_size", "0"), Code::kInvalidArgument,
               "text_config.hidden_size: is 0, must be an integer from 1 to 1048576");
}

TEST(ModelConfigErrors, VocabularyLimits) {
  const std::string text =
      with_field(with_field(fixture("kimi-k2-thinking.json"), "eos_token_id", "null"), "bos_token_id", "null");
  for (const char* value : {"2", "8388608"})
    EXPECT_TRUE(parse_model_config(with_field(text, "vocab_size", value)).ok()) << value;
  for (const char* value : {"1", "8388609"})
    expect_error(with_field(text, "vocab_size", value), Code::kInvalidArgument,
                 std::string("vocab_size: is ") + value + ", must be an integer from 2 to 8388608");
}

TEST(ModelConfigErrors, ImpossibleReals) {
  const std::string text = fixture("kimi-k2-thinking.json");
  for (const char* value : {"0", "-1e-5", "1", "1e999", "\"small\""})
    expect_error(with_field(text, "rms_norm_eps", value), Code::kInvalidArgument, "rms_norm_eps: is ");
  for (const char* value : {"0", "-2.8", "1e300"})
    expect_error(with_field(text, "routed_scaling_factor", value), Code::kInvalidArgument,
                 "routed_scaling_factor: is ");
  for (const char* value : {"NaN", "Infinity"})
    expect_error(with_field(text, "rms_norm_eps", value), Code::kCorrupt, std::string("near \"") + value);
}

TEST(ModelConfigErrors, ValuesThatDoNotGoTogether) {
  const std::string v3 = fixture("deepseek-v3.json");
  expect_error(with_field(v3, "n_group", "7"), Code::kInvalidArgument,
               "n_group: is 7, does not divide n_routed_experts 256");
  expect_error(with_field(v3, "topk_group", "9"), Code::kInvalidArgument,
               "topk_group: is 9, must be an integer from 1 to 8");
  expect_error(with_field(v3, "topk_group", ""), Code::kInvalidArgument, "topk_group is missing");
  expect_error(with_field(with_field(v3, "n_group", "64"), "topk_group", "1"), Code::kInvalidArgument,
               "topk_group: is 1: 4 experts remain, fewer than num_experts_per_tok 8");
  expect_error(with_field(v3, "n_group", "256"), Code::kInvalidArgument, "n_group: leaves one expert a group");
  expect_error(with_field(v3, "num_key_value_heads", "8"), Code::kInvalidArgument, "num_key_value_heads is 8");
  expect_error(with_field(v3, "qk_rope_head_dim", "63"), Code::kInvalidArgument,
               "qk_rope_head_dim: is 63, must be even");
  expect_error(with_field(v3, "eos_token_id", "129280"), Code::kInvalidArgument, "eos_token_id: is 129280");
  expect_error(with_field(v3, "bos_token_id", "-1"), Code::kInvalidArgument, "bos_token_id: is -1");
}

TEST(ModelConfigErrors, UnknownArchitecturesByName) {
  const std::string text = fixture("kimi-k2-thinking.json");
  for (const char* type : {"llama", "qwen3", "glm4_moe", ""})
    expect_error(with_field(text, "model_type", "\"" + std::string(type) + "\""), Code::kUnsupported,
                 "model_type \"" + std::string(type) +
                     "\" is not supported; supported are kimi_k25, kimi_k2, deepseek_v3 and deepseek_v2");
  expect_error(replaced(text, "DeepseekV3ForCausalLM", "LlamaForCausalLMEagle3"), Code::kUnsupported,
               "architecture \"LlamaForCausalLMEagle3\"");
  const std::string nested = fixture("kimi-k2.6.json");
  expect_error(replaced(nested, "\"model_type\": \"kimi_k2\"", "\"model_type\": \"kimi_linear\""), Code::kUnsupported,
               "text_config: model_type \"kimi_linear\"");
  expect_error(R"({"model_type": "kimi_k25"})", Code::kInvalidArgument, "text_config is missing");
  expect_error(R"({"model_type": "kimi_k25", "text_config": 3})", Code::kInvalidArgument, "text_config: is 3");
}

TEST(ModelConfigErrors, UnsupportedVariantsByName) {
  const std::string text = fixture("deepseek-v3.json");
  expect_error(with_field(text, "hidden_act", "\"gelu\""), Code::kUnsupported, "hidden_act: is \"gelu\"");
  expect_error(with_field(text, "attention_bias", "true"), Code::kUnsupported, "attention_bias: is true");
  expect_error(with_field(text, "scoring_func", "\"tanh\""), Code::kUnsupported, "scoring_func: \"tanh\"");
  expect_error(with_field(text, "topk_method", "\"auction\""), Code::kUnsupported, "topk_method: \"auction\"");
  expect_error(with_field(text, "torch_dtype", "\"int8\""), Code::kUnsupported, "torch_dtype: is \"int8\"");
  expect_error(with_field(text, "ep_size", "0,\n\"rope_interleave\": false"), Code::kUnsupported, "rope_interleave");
}

TEST(ModelConfigErrors, QuantisationsByName) {
  expect_error(fixture("deepseek-v3-fp8.json"), Code::kUnsupported, "FP8 block checkpoints");
  expect_error(fixture("kimi-k2-instruct.json"), Code::kUnsupported, "FP8 block checkpoints");
  const std::string text = fixture("kimi-k2.6.json");
  const std::string at = "text_config.quantization_config";
  expect_error(replaced(text, "\"compressed-tensors\"", "\"gptq\""), Code::kUnsupported,
               at + ": quant_method \"gptq\"");
  expect_error(replaced(text, "\"pack-quantized\"", "\"nvfp4-pack-quantized\""), Code::kUnsupported,
               "format \"nvfp4-pack-quantized\"");
  expect_error(with_field(text, "num_bits", "8"), Code::kUnsupported, "num_bits 8");
  expect_error(with_field(text, "symmetric", "false"), Code::kUnsupported, "asymmetric");
  expect_error(with_field(text, "strategy", "\"channel\""), Code::kUnsupported, "strategy \"channel\"");
  expect_error(replaced(text, "\"type\": \"int\"", "\"type\": \"float\""), Code::kUnsupported, "type \"float\"");
  expect_error(with_field(text, "actorder", "\"group\""), Code::kUnsupported, "actorder: activation order");
  expect_error(with_field(text, "group_size", "0"), Code::kInvalidArgument, "group_size: is 0");
  expect_error(with_field(text, "group_size", "12"), Code::kUnsupported, "group_size 12 is not a multiple of 8");
  expect_error(with_field(text, "input_activations", "{\"num_bits\": 8}"), Code::kUnsupported, "quantised activations");
  expect_error(with_field(fixture("deepseek-v3.json"), "ep_size",
                          "0, \"quantization_config\": {\"quant_method\": "
                          "\"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": {}}"),
               Code::kInvalidArgument, "config_groups: is empty");
}

TEST(ModelConfig, QuantisationAtEitherLevel) {
  const std::string nested = fixture("kimi-k2.6.json");
  const size_t begin = nested.find("\"quantization_config\"");
  const std::string outer = replaced(nested, "\"quantization_config\"", "\"moved\"");
  const size_t end = nested.rfind("\"vision_config\"");
  std::string block = nested.substr(begin, nested.find("\n    }\n", begin) + 6 - begin);
  ASSERT_LT(begin, end);
  const Result<ModelConfig> config = parse_model_config("{" + block + "," + outer.substr(1));
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->int4_group_size, 32);
}

TEST(ModelConfig, MissingGroupsAreOneGroup) {
  const std::string text =
      with_field(with_field(fixture("kimi-k2-thinking.json"), "n_group", "null"), "topk_group", "null");
  const Result<ModelConfig> config = parse_model_config(text);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->num_groups, 1);
  EXPECT_EQ(config->topk_groups, 1);
}

TEST(ModelConfig, GreedyIgnoresGroups) {
  const std::string text = with_field(fixture("deepseek-v3.json"), "topk_method", "\"greedy\"");
  for (const char* groups : {"7", "0", "256", "null"}) {
    const Result<ModelConfig> config = parse_model_config(with_field(text, "n_group", groups));
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_EQ(config->num_groups, 1);
    EXPECT_EQ(config->topk_groups, 1);
  }
}

}  // namespace
}  // namespace ddtree
