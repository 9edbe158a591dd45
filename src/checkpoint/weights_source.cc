#include "checkpoint/weights_source.h"

#include <string>
#include <utility>

#include "checkpoint/tensor_picker.h"

namespace ddtree {
namespace {

Status take_attention(TensorPicker& pick, const ModelConfig& c, const std::string& layer, LayerSource* out) {
  const std::string attn = layer + "self_attn.";
  const int64_t q_rows = c.num_heads * c.qk_head_dim();
  if (c.q_lora_rank == 0) {
    TRY_ASSIGN(out->q_b, pick.take_linear(attn + "q_proj", q_rows, c.hidden_size));
  } else {
    TRY_ASSIGN(out->q_a, pick.take_linear(attn + "q_a_proj", c.q_lora_rank, c.hidden_size));
    TRY_ASSIGN(out->q_a_norm, pick.take(attn + "q_a_layernorm.weight", {c.q_lora_rank}));
    TRY_ASSIGN(out->q_b, pick.take_linear(attn + "q_b_proj", q_rows, c.q_lora_rank));
  }
  TRY_ASSIGN(out->kv_a, pick.take_linear(attn + "kv_a_proj_with_mqa", c.kv_row_width(), c.hidden_size));
  TRY_ASSIGN(out->kv_a_norm, pick.take(attn + "kv_a_layernorm.weight", {c.kv_lora_rank}));
  const int64_t kv_rows = c.num_heads * (c.qk_nope_head_dim + c.v_head_dim);
  TRY_ASSIGN(out->kv_b, pick.take_linear(attn + "kv_b_proj", kv_rows, c.kv_lora_rank));
  TRY_ASSIGN(out->o, pick.take_linear(attn + "o_proj", c.hidden_size, c.num_heads * c.v_head_dim));
  return {};
}

struct Mlp {
  Linear gate, up, down;
};

Result<Mlp> take_mlp(TensorPicker& pick, const std::string& module, int64_t hidden, int64_t inner) {
  Mlp mlp;
  TRY_ASSIGN(mlp.gate, pick.take_linear(module + "gate_proj", inner, hidden));
  TRY_ASSIGN(mlp.up, pick.take_linear(module + "up_proj", inner, hidden));
  TRY_ASSIGN(mlp.down, pick.take_linear(module + "down_proj", hidden, inner));
  return mlp;
}

// Matrix `index` of a stack [n, rows, columns], its rows [first, first + count).
Linear plane(const TensorView& stack, int64_t index, int64_t first, int64_t count) {
  const TensorView matrix = stack.slice(index, 1);
  TensorView view(matrix.data, matrix.dtype, {stack.dim[1], stack.dim[2]});
  return Linear{.weight = view.slice(first, count), .scale = {}, .group_size = 0, .out = count, .in = stack.dim[2]};
}

// The layout of saves that keep experts fused: gate rows, then up rows.
Status take_fused_experts(TensorPicker& pick, const ModelConfig& c, const std::string& experts, LayerSource* out) {
  const int64_t inner = c.moe_intermediate_size;
  TRY_ASSIGN(const TensorView gate_up, pick.take(experts + "gate_up_proj", {c.num_experts, 2 * inner, c.hidden_size}));
  TRY_ASSIGN(const TensorView down, pick.take(experts + "down_proj", {c.num_experts, c.hidden_size, inner}));
  for (int64_t e = 0; e < c.num_experts; ++e) {
    out->expert_gate.push_back(plane(gate_up, e, 0, inner));
    out->expert_up.push_back(plane(gate_up, e, inner, inner));
    out->expert_down.push_back(plane(down, e, 0, c.hidden_size));
  }
  return {};
}

Status take_experts(TensorPicker& pick, const ModelConfig& c, const std::string& experts, LayerSource* out) {
  if (pick.has(experts + "gate_up_proj")) return take_fused_experts(pick, c, experts, out);
  for (int64_t e = 0; e < c.num_experts; ++e) {
    const std::string expert = experts + std::to_string(e) + ".";
    TRY_ASSIGN(Mlp mlp, take_mlp(pick, expert, c.hidden_size, c.moe_intermediate_size));
    out->expert_gate.push_back(mlp.gate);
    out->expert_up.push_back(mlp.up);
    out->expert_down.push_back(mlp.down);
  }
  return {};
}

Status take_moe(TensorPicker& pick, const ModelConfig& c, const std::string& mlp, LayerSource* out) {
  TRY_ASSIGN(out->router, pick.take_plain(mlp + "gate", c.num_experts, c.hidden_size));
  if (c.has_router_bias()) {
    TRY_ASSIGN(out->router_bias, pick.take(mlp + "gate.e_score_correction_bias", {c.num_experts}));
  }
  TRY(take_experts(pick, c, mlp + "experts.", out));
  if (c.num_shared_experts == 0) return {};
  TRY_ASSIGN(Mlp shared, take_mlp(pick, mlp + "shared_experts.", c.hidden_size, c.shared_intermediate_size()));
  out->shared_gate = shared.gate;
  out->shared_up = shared.up;
  out->shared_down = shared.down;
  return {};
}

Result<LayerSource> take_layer(TensorPicker& pick, const ModelConfig& c, int64_t index) {
  const std::string layer = "model.layers." + std::to_string(index) + ".";
  LayerSource out;
  TRY_ASSIGN(out.attn_norm, pick.take(layer + "input_layernorm.weight", {c.hidden_size}));
  TRY_ASSIGN(out.ffn_norm, pick.take(layer + "post_attention_layernorm.weight", {c.hidden_size}));
  TRY(take_attention(pick, c, layer, &out));
  if (c.is_moe_layer(index)) {
    TRY(take_moe(pick, c, layer + "mlp.", &out));
    return out;
  }
  TRY_ASSIGN(Mlp mlp, take_mlp(pick, layer + "mlp.", c.hidden_size, c.intermediate_size));
  out.gate = mlp.gate;
  out.up = mlp.up;
  out.down = mlp.down;
  return out;
}

Result<DrafterLayerSource> take_drafter_layer(TensorPicker& pick, const DrafterConfig& c, int64_t index) {
  const std::string layer = "layers." + std::to_string(index) + ".";
  const std::string attn = layer + "self_attn.";
  const int64_t q_rows = c.num_heads * c.head_dim;
  const int64_t kv_rows = c.num_kv_heads * c.head_dim;
  DrafterLayerSource out;
  TRY_ASSIGN(out.attn_norm, pick.take(layer + "input_layernorm.weight", {c.hidden_size}));
  TRY_ASSIGN(out.ffn_norm, pick.take(layer + "post_attention_layernorm.weight", {c.hidden_size}));
  TRY_ASSIGN(out.q, pick.take_plain(attn + "q_proj", q_rows, c.hidden_size));
  TRY_ASSIGN(out.k, pick.take_plain(attn + "k_proj", kv_rows, c.hidden_size));
  TRY_ASSIGN(out.v, pick.take_plain(attn + "v_proj", kv_rows, c.hidden_size));
  TRY_ASSIGN(out.o, pick.take_plain(attn + "o_proj", c.hidden_size, q_rows));
  TRY_ASSIGN(out.q_norm, pick.take(attn + "q_norm.weight", {c.head_dim}));
  TRY_ASSIGN(out.k_norm, pick.take(attn + "k_norm.weight", {c.head_dim}));
  TRY_ASSIGN(out.gate, pick.take_plain(layer + "mlp.gate_proj", c.intermediate_size, c.hidden_size));
  TRY_ASSIGN(out.up, pick.take_plain(layer + "mlp.up_proj", c.intermediate_size, c.hidden_size));
  TRY_ASSIGN(out.down, pick.take_plain(layer + "mlp.down_proj", c.hidden_size, c.intermediate_size));
  return out;
}

}  // namespace

Result<DeepseekSource> map_deepseek(const Checkpoint& checkpoint, const ModelConfig& config) {
  const std::string prefix = text_model_prefix(checkpoint);
  TensorPicker pick(checkpoint, prefix, config.int4_group_size);
  DeepseekSource source;
  TRY_ASSIGN(source.embed, pick.take_plain("model.embed_tokens", config.vocab_size, config.hidden_size));
  TRY_ASSIGN(source.norm, pick.take("model.norm.weight", {config.hidden_size}));
  source.head = source.embed;
  if (!config.tie_word_embeddings) {
    TRY_ASSIGN(source.head, pick.take_plain("lm_head", config.vocab_size, config.hidden_size));
  }
  source.layers.reserve(static_cast<size_t>(config.num_layers));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    TRY_ASSIGN(LayerSource layer, take_layer(pick, config, i));
    source.layers.push_back(std::move(layer));
  }
  const std::string unused_head = prefix + "lm_head.weight";
  TRY(pick.finish([&](std::string_view name) {
    return is_known_extra(name, prefix, config.num_layers, config.num_mtp_layers) ||
           (config.tie_word_embeddings && name == unused_head);
  }));
  return source;
}

Result<DeepseekSource> load_deepseek(const Checkpoint& checkpoint, const ModelConfig& config) {
  TRY_ASSIGN(DeepseekSource source, map_deepseek(checkpoint, config));
  TRY(check_values(checkpoint));
  return source;
}

Result<DrafterSource> map_dflash(const Checkpoint& checkpoint, const DrafterConfig& config) {
  TensorPicker pick(checkpoint, checkpoint.find("model.fc.weight") ? "model." : "", 0);
  DrafterSource source;
  TRY_ASSIGN(source.fc, pick.take_plain("fc", config.hidden_size, config.num_taps() * config.hidden_size));
  TRY_ASSIGN(source.hidden_norm, pick.take("hidden_norm.weight", {config.hidden_size}));
  TRY_ASSIGN(source.norm, pick.take("norm.weight", {config.hidden_size}));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    TRY_ASSIGN(DrafterLayerSource layer, take_drafter_layer(pick, config, i));
    source.layers.push_back(std::move(layer));
  }
  TRY(pick.finish([](std::string_view) { return false; }));
  return source;
}

Result<DrafterSource> load_dflash(const Checkpoint& checkpoint, const DrafterConfig& config) {
  TRY_ASSIGN(DrafterSource source, map_dflash(checkpoint, config));
  TRY(check_values(checkpoint));
  return source;
}

}  // namespace ddtree
