#include "checkpoint/drafter_config.h"

#include <array>
#include <optional>

#include <fmt/core.h>

#include "base/mapped_file.h"
#include "checkpoint/config_fields.h"

namespace ddtree {
namespace {

constexpr int64_t kMaxBlock = 256;
constexpr std::array<std::string_view, 4> kUnsupportedKeys = {"selector_rank", "selector_top_k", "conv_kernel_size",
                                                              "final_logit_softcapping"};
constexpr std::array<std::string_view, 2> kUnsupportedFactors = {"input_embedding_scale", "output_multiplier"};

Status check_architecture(const JsonValue& root) {
  TRY_ASSIGN(const std::string architecture, find_architecture(root));
  if (architecture == "DFlashDraftModel") return {};
  if (architecture.empty())
    return root.error(Code::kInvalidArgument, "architectures is missing; a drafter's is DFlashDraftModel");
  return root.error(Code::kUnsupported,
                    fmt::format("drafter architecture \"{}\" is not supported, only DFlashDraftModel", architecture));
}

Status parse_sizes(const JsonValue& root, DrafterConfig* config) {
  TRY_ASSIGN(config->vocab_size, parse_vocab_size(root));
  TRY_ASSIGN(config->hidden_size, root.get_int("hidden_size", 1, kMaxWidth));
  TRY_ASSIGN(config->intermediate_size, root.get_int("intermediate_size", 1, kMaxWidth));
  TRY_ASSIGN(config->num_layers, root.get_int("num_hidden_layers", 1, kMaxLayers));
  TRY_ASSIGN(config->num_heads, root.get_int("num_attention_heads", 1, kMaxHeads));
  TRY_ASSIGN(config->num_kv_heads, root.get_int("num_key_value_heads", 1, config->num_heads));
  TRY_ASSIGN(config->head_dim, root.get_int("head_dim", 2, kMaxHeadDim));
  TRY_ASSIGN(config->rms_norm_eps, root.get_double("rms_norm_eps", 1e-12, 0.1));
  TRY_ASSIGN(config->max_position, root.get_int("max_position_embeddings", 1, kMaxPositions));
  if (config->head_dim % 2 != 0)
    return root.get("head_dim")
        ->error(Code::kInvalidArgument, fmt::format("is {}, must be even: rotations act on pairs", config->head_dim));
  if (config->num_heads % config->num_kv_heads != 0)
    return root.get("num_key_value_heads")
        ->error(Code::kInvalidArgument,
                fmt::format("is {}, does not divide num_attention_heads {}", config->num_kv_heads, config->num_heads));
  TRY(require_flag(root, "attention_bias", false));
  return require_name(root, "hidden_act", "silu");
}

Status parse_block_size(const JsonValue& root, const JsonValue& dflash, DrafterConfig* config) {
  TRY_ASSIGN(const std::optional<int64_t> outer, root.find_int("block_size", 2, kMaxBlock));
  TRY_ASSIGN(const std::optional<int64_t> inner, dflash.find_int("block_size", 2, kMaxBlock));
  if (outer && inner && *outer != *inner)
    return dflash.get("block_size")
        ->error(Code::kInvalidArgument, fmt::format("is {} but the outer block_size is {}", *inner, *outer));
  if (!outer && !inner) return root.get_int("block_size").error();
  config->block_size = inner ? *inner : *outer;
  return {};
}

Status parse_taps(const JsonValue& root, const JsonValue& dflash, DrafterConfig* config) {
  TRY_ASSIGN(const std::optional<int64_t> layers, root.find_int("num_target_layers", 1, kMaxLayers));
  config->num_target_layers = layers.value_or(0);
  TRY_ASSIGN(const JsonValue list, dflash.get("target_layer_ids"));
  TRY_ASSIGN(const JsonElements elements, list.elements());
  if (elements.size() == 0) return list.error(Code::kInvalidArgument, "is empty");
  for (const JsonValue element : elements) {
    TRY_ASSIGN(const int64_t id, element.as_int(0, layers.value_or(kMaxLayers) - 1));
    if (!config->target_layer_ids.empty() && id <= config->target_layer_ids.back())
      return element.error(Code::kInvalidArgument,
                           fmt::format("is {} after {}, must ascend", id, config->target_layer_ids.back()));
    config->target_layer_ids.push_back(id);
  }
  return {};
}

Status parse_dflash(const JsonValue& root, DrafterConfig* config) {
  TRY_ASSIGN(const JsonValue dflash, root.get("dflash_config"));
  TRY(dflash.members());
  for (const std::string_view key : kUnsupportedKeys) {
    const std::optional<JsonValue> value = dflash.find(key);
    if (value && !value->is_null()) return value->error(Code::kUnsupported, "is not supported by this build");
  }
  for (const std::string_view key : kUnsupportedFactors) {
    TRY_ASSIGN(const std::optional<double> factor, dflash.find_double(key));
    if (factor.value_or(1) != 1) return dflash.get(key)->error(Code::kUnsupported, "other than 1 is not supported");
  }
  TRY(parse_block_size(root, dflash, config));
  TRY(parse_taps(root, dflash, config));
  TRY_ASSIGN(const int64_t mask, dflash.get_int("mask_token_id", 0, config->vocab_size - 1));
  config->mask_token_id = static_cast<int32_t>(mask);
  return {};
}

// One bool per layer. Without layer_types the rule is Qwen3's: the layers from max_window_layers on slide, if any do.
Result<std::vector<bool>> parse_sliding(const JsonValue& root, int64_t num_layers) {
  std::vector<bool> sliding;
  const std::optional<JsonValue> types = root.find("layer_types");
  if (!types || types->is_null()) {
    TRY_ASSIGN(const std::optional<bool> used, root.find_bool("use_sliding_window"));
    TRY_ASSIGN(const std::optional<int64_t> first, root.find_int("max_window_layers", 0, kMaxLayers));
    for (int64_t layer = 0; layer < num_layers; ++layer)
      sliding.push_back(used.value_or(false) && layer >= first.value_or(0));
    return sliding;
  }
  TRY_ASSIGN(const JsonElements elements, types->elements());
  if (static_cast<int64_t>(elements.size()) != num_layers)
    return types->error(Code::kInvalidArgument,
                        fmt::format("has {} entries, num_hidden_layers is {}", elements.size(), num_layers));
  for (const JsonValue element : elements) {
    TRY_ASSIGN(const std::string_view type, element.as_string());
    if (type != "full_attention" && type != "sliding_attention")
      return element.error(Code::kUnsupported,
                           fmt::format("\"{}\" is not supported, only full_attention and sliding_attention", type));
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

// Drafters of this architecture were trained with causal sliding layers before is_causal existed.
Status parse_layers(const JsonValue& root, DrafterConfig* config) {
  TRY_ASSIGN(const std::vector<bool> sliding, parse_sliding(root, config->num_layers));
  TRY_ASSIGN(const std::optional<int64_t> window, root.find_int("sliding_window", 1, kMaxPositions));
  TRY_ASSIGN(const std::optional<bool> causal, root.find_bool("is_causal"));
  for (const bool slides : sliding) {
    if (slides && !window) return root.get_int("sliding_window").error();
    config->layers.push_back({.window = slides ? *window : 0, .causal_block = causal.value_or(slides)});
  }
  return {};
}

Status parse_rotation(const JsonValue& root, const DrafterOptions& options, DrafterConfig* config) {
  TRY_ASSIGN(config->rope, parse_rope(root));
  config->inv_freq = rope_inv_freq(config->rope, config->head_dim);
  const bool legacy = options.amplitude == YarnAmplitude::kLegacy && config->rope.type == RopeType::kYarn;
  config->rope_amplitude = legacy ? yarn_mscale(config->rope.factor, 1) : rope_amplitude(config->rope);
  return {};
}

}  // namespace

Result<DrafterConfig> parse_drafter_config(std::string_view text, const DrafterOptions& options) {
  TRY_ASSIGN(const JsonDocument document, parse_json(text, "config.json"));
  const JsonValue root = document.root();
  TRY(root.members());
  TRY(check_architecture(root));
  const std::optional<JsonValue> quantised = root.find("quantization_config");
  if (quantised && !quantised->is_null())
    return quantised->error(Code::kUnsupported, "quantised drafters are not supported");
  DrafterConfig config;
  TRY(parse_sizes(root, &config));
  TRY(parse_dflash(root, &config));
  TRY(parse_layers(root, &config));
  TRY(parse_rotation(root, options, &config));
  TRY_ASSIGN(config.dtype, parse_dtype(root, root));
  return config;
}

Result<DrafterConfig> load_drafter_config(const std::string& dir, const DrafterOptions& options) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(dir + "/config.json"));
  return in_dir(dir, parse_drafter_config(file.text(), options));
}

Status check_drafter_fits(const DrafterConfig& drafter, const ModelConfig& target) {
  const auto refuse = [](const char* field, int64_t ours, int64_t theirs) {
    return Error{
        Code::kInvalidArgument,
        fmt::format("drafter does not belong to this target: {} is {}, the target's is {}", field, ours, theirs)};
  };
  if (drafter.hidden_size != target.hidden_size) return refuse("hidden_size", drafter.hidden_size, target.hidden_size);
  if (drafter.vocab_size != target.vocab_size) return refuse("vocab_size", drafter.vocab_size, target.vocab_size);
  if (drafter.num_target_layers != 0 && drafter.num_target_layers != target.num_layers)
    return refuse("num_target_layers", drafter.num_target_layers, target.num_layers);
  if (drafter.target_layer_ids.back() >= target.num_layers)
    return refuse("target_layer_ids", drafter.target_layer_ids.back(), target.num_layers);
  return {};
}

}  // namespace ddtree
