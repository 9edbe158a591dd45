#include "checkpoint/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <span>

#include <fmt/core.h>

#include "base/mapped_file.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/quant_config.h"

namespace ddtree {
namespace {

constexpr std::array<std::string_view, 4> kModelTypes = {"kimi_k25", "kimi_k2", "deepseek_v3", "deepseek_v2"};
constexpr std::array<std::string_view, 3> kTextModelTypes = {"kimi_k2", "deepseek_v3", "deepseek_v2"};
constexpr std::array<std::string_view, 4> kArchitectures = {"DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM",
                                                            "KimiK25ForConditionalGeneration",
                                                            "Kimi_K25ForConditionalGeneration"};

Status check_known(const JsonValue& config, std::span<const std::string_view> model_types) {
  TRY_ASSIGN(const std::string_view model_type, config.get_string("model_type"));
  if (std::find(model_types.begin(), model_types.end(), model_type) == model_types.end())
    return config.error(Code::kUnsupported, fmt::format("model_type \"{}\" is not supported; supported are {}",
                                                        model_type, join(model_types)));
  TRY_ASSIGN(const std::string architecture, find_architecture(config));
  if (architecture.empty()) return {};
  if (std::find(kArchitectures.begin(), kArchitectures.end(), architecture) == kArchitectures.end())
    return config.error(Code::kUnsupported, fmt::format("architecture \"{}\" is not supported; supported are {}",
                                                        architecture, join(kArchitectures)));
  return {};
}

Status parse_sizes(const JsonValue& text, ModelConfig* config) {
  TRY_ASSIGN(config->vocab_size, parse_vocab_size(text));
  TRY_ASSIGN(config->hidden_size, text.get_int("hidden_size", 1, kMaxWidth));
  TRY_ASSIGN(config->intermediate_size, text.get_int("intermediate_size", 1, kMaxWidth));
  TRY_ASSIGN(config->num_layers, text.get_int("num_hidden_layers", 1, kMaxLayers));
  TRY_ASSIGN(const std::optional<int64_t> mtp, text.find_int("num_nextn_predict_layers", 0, kMaxLayers));
  config->num_mtp_layers = mtp.value_or(0);
  TRY_ASSIGN(config->max_position, text.get_int("max_position_embeddings", 1, kMaxPositions));
  TRY_ASSIGN(config->rms_norm_eps, text.get_double("rms_norm_eps", 1e-12, 0.1));
  return require_name(text, "hidden_act", "silu");
}

Status parse_attention(const JsonValue& text, const ConfigOptions& options, ModelConfig* config) {
  TRY_ASSIGN(config->num_heads, text.get_int("num_attention_heads", 1, kMaxHeads));
  TRY_ASSIGN(const std::optional<int64_t> kv_heads, text.find_int("num_key_value_heads", 1, kMaxHeads));
  if (kv_heads.value_or(config->num_heads) != config->num_heads)
    return text.error(
        Code::kInvalidArgument,
        fmt::format("num_key_value_heads is {}, must equal num_attention_heads {}", *kv_heads, config->num_heads));
  if (!text.find("q_lora_rank")) return text.get_int("q_lora_rank").error();
  TRY_ASSIGN(const std::optional<int64_t> q_lora, text.find_int("q_lora_rank", 1, kMaxWidth));
  config->q_lora_rank = q_lora.value_or(0);
  TRY_ASSIGN(config->kv_lora_rank, text.get_int("kv_lora_rank", 1, kMaxWidth));
  TRY_ASSIGN(config->qk_nope_head_dim, text.get_int("qk_nope_head_dim", 1, kMaxHeadDim));
  TRY_ASSIGN(config->qk_rope_head_dim, text.get_int("qk_rope_head_dim", 2, kMaxHeadDim));
  TRY_ASSIGN(config->v_head_dim, text.get_int("v_head_dim", 1, kMaxHeadDim));
  if (config->qk_rope_head_dim % 2 != 0)
    return text.get("qk_rope_head_dim")
        ->error(Code::kInvalidArgument,
                fmt::format("is {}, must be even: rotations act on pairs", config->qk_rope_head_dim));
  TRY(require_flag(text, "attention_bias", false));
  TRY(require_flag(text, "rope_interleave", true));
  config->mla_lora_norm_eps = options.mla_lora_norm_eps.value_or(config->rms_norm_eps);
  TRY_ASSIGN(config->rope, parse_rope(text));
  config->inv_freq = rope_inv_freq(config->rope, config->qk_rope_head_dim);
  config->rope_amplitude = rope_amplitude(config->rope);
  config->softmax_scale = rope_softmax_factor(config->rope) / std::sqrt(static_cast<double>(config->qk_head_dim()));
  return {};
}

Status parse_scoring(const JsonValue& text, bool v2, ModelConfig* config) {
  TRY_ASSIGN(const std::optional<std::string_view> scoring, text.find_string("scoring_func"));
  const std::string_view name = scoring.value_or(v2 ? "softmax" : "sigmoid");
  if (name == "sigmoid") {
    config->scoring = Scoring::kSigmoid;
  } else if (name == "softmax") {
    config->scoring = Scoring::kSoftmax;
  } else {
    return text.get("scoring_func")
        ->error(Code::kUnsupported, fmt::format("\"{}\" is not supported, only sigmoid and softmax", name));
  }
  TRY_ASSIGN(const std::optional<std::string_view> topk, text.find_string("topk_method"));
  const std::string_view method = topk.value_or(v2 ? "greedy" : "noaux_tc");
  if (method == "noaux_tc") {
    config->topk_method = TopkMethod::kNoauxTc;
  } else if (method == "group_limited_greedy") {
    config->topk_method = TopkMethod::kGroupLimitedGreedy;
  } else if (method == "greedy") {
    config->topk_method = TopkMethod::kGreedy;
  } else {
    return text.get("topk_method")
        ->error(Code::kUnsupported,
                fmt::format("\"{}\" is not supported, only noaux_tc, group_limited_greedy and greedy", method));
  }
  TRY_ASSIGN(const std::optional<bool> norm, text.find_bool("norm_topk_prob"));
  config->norm_topk_prob = norm.value_or(!v2);
  TRY_ASSIGN(config->routed_scaling_factor, text.get_double("routed_scaling_factor", 1e-6, 1e6));
  return {};
}

// Groups must be equal, and those kept must hold at least the experts that a token takes.
Status parse_groups(const JsonValue& text, ModelConfig* config) {
  if (config->topk_method == TopkMethod::kGreedy) return {};  // has no groups, whatever the file says
  TRY_ASSIGN(const std::optional<int64_t> groups, text.find_int("n_group", 1, config->num_experts));
  const int64_t n = groups.value_or(1);
  TRY_ASSIGN(const std::optional<int64_t> kept, text.find_int("topk_group", 1, n));
  if (config->num_experts % n != 0)
    return text.get("n_group")->error(
        Code::kInvalidArgument, fmt::format("is {}, does not divide n_routed_experts {}", n, config->num_experts));
  if (n > 1 && !kept) return text.get_int("topk_group").error();
  const int64_t per_group = config->num_experts / n;
  const int64_t top = kept.value_or(1);
  if (n > 1 && config->topk_method == TopkMethod::kNoauxTc && per_group < 2)
    return text.get("n_group")->error(Code::kInvalidArgument, "leaves one expert a group, noaux_tc needs two");
  if (top * per_group < config->num_experts_per_token)
    return text.get("topk_group")
        ->error(Code::kInvalidArgument, fmt::format("is {}: {} experts remain, fewer than num_experts_per_tok {}", top,
                                                    top * per_group, config->num_experts_per_token));
  config->num_groups = n;
  config->topk_groups = top;
  return {};
}

Status parse_experts(const JsonValue& text, bool v2, ModelConfig* config) {
  TRY_ASSIGN(const std::optional<int64_t> experts, text.find_int("n_routed_experts", 1, kMaxExperts));
  config->first_dense_layers = config->num_layers;
  if (!experts) return {};
  config->num_experts = *experts;
  TRY_ASSIGN(config->num_experts_per_token, text.get_int("num_experts_per_tok", 1, *experts));
  TRY_ASSIGN(config->moe_intermediate_size, text.get_int("moe_intermediate_size", 1, kMaxWidth));
  TRY_ASSIGN(const std::optional<int64_t> shared, text.find_int("n_shared_experts", 0, 1024));
  config->num_shared_experts = shared.value_or(0);
  TRY_ASSIGN(const std::optional<int64_t> dense, text.find_int("first_k_dense_replace", 0, config->num_layers));
  config->first_dense_layers = dense.value_or(0);
  TRY_ASSIGN(const std::optional<int64_t> every, text.find_int("moe_layer_freq", 1, kMaxLayers));
  config->moe_layer_freq = every.value_or(1);
  TRY(parse_scoring(text, v2, config));
  return parse_groups(text, config);
}

// Both levels may carry the block; the text model's own wins.
Status parse_quantisation(const JsonValue& root, const JsonValue& text, ModelConfig* config) {
  for (const JsonValue& level : {text, root}) {
    const std::optional<JsonValue> block = level.find("quantization_config");
    if (!block || block->is_null()) continue;
    TRY_ASSIGN(config->int4_group_size, parse_int4_group_size(*block));
    return {};
  }
  return {};
}

Status parse_generation(std::string_view text, ModelConfig* config) {
  if (text.empty()) return {};
  TRY_ASSIGN(const JsonDocument document, parse_json(text, "generation_config.json"));
  TRY(document.root().members());
  return add_token_ids(document.root(), "eos_token_id", config->vocab_size, &config->eos_ids);
}

// A wrapper's own ids win: a text_config may carry the defaults of its class.
Status parse_tokens(const JsonValue& root, const JsonValue& text, std::string_view generation_text,
                    ModelConfig* config) {
  for (const JsonValue& level : {root, text}) {
    if (config->eos_ids.empty()) TRY(add_token_ids(level, "eos_token_id", config->vocab_size, &config->eos_ids));
    TRY_ASSIGN(const std::optional<int64_t> bos, level.find_int("bos_token_id", 0, config->vocab_size - 1));
    if (bos && !config->bos_id) config->bos_id = static_cast<int32_t>(*bos);
  }
  TRY(parse_generation(generation_text, config));
  std::vector<int32_t>& ids = config->eos_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return {};
}

}  // namespace

int64_t ModelConfig::num_dense_layers() const {
  int64_t n = 0;
  for (int64_t layer = 0; layer < num_layers; ++layer) n += !is_moe_layer(layer);
  return n;
}

Result<ModelConfig> parse_model_config(std::string_view text, std::string_view generation_text,
                                       const ConfigOptions& options) {
  TRY_ASSIGN(const JsonDocument document, parse_json(text, "config.json"));
  const JsonValue root = document.root();
  TRY(root.members());
  TRY(check_known(root, kModelTypes));
  ModelConfig config;
  config.model_type = *root.get_string("model_type");
  TRY_ASSIGN(config.architecture, find_architecture(root));

  JsonValue inner = root;
  if (config.model_type == "kimi_k25") {
    TRY_ASSIGN(inner, root.get("text_config"));
    TRY(inner.members());
    TRY(check_known(inner, kTextModelTypes));
  }
  const bool v2 = *inner.get_string("model_type") == "deepseek_v2";
  TRY(parse_quantisation(root, inner, &config));
  TRY(parse_sizes(inner, &config));
  TRY(parse_attention(inner, options, &config));
  TRY(parse_experts(inner, v2, &config));
  TRY(parse_tokens(root, inner, generation_text, &config));
  TRY_ASSIGN(config.dtype, parse_dtype(root, inner));
  TRY_ASSIGN(const std::optional<bool> tied, inner.find_bool("tie_word_embeddings"));
  config.tie_word_embeddings = tied.value_or(false);
  return config;
}

Result<ModelConfig> load_model_config(const std::string& dir, const ConfigOptions& options) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(dir + "/config.json"));
  const std::string generation_path = dir + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(generation_path, ignored))
    return in_dir(dir, parse_model_config(file.text(), {}, options));
  TRY_ASSIGN(const MappedFile generation, MappedFile::open(generation_path));
  return in_dir(dir, parse_model_config(file.text(), generation.text(), options));
}

}  // namespace ddtree
