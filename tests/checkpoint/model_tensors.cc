#include "model_tensors.h"

#include <cstring>

namespace ddtree::testing {
namespace {

using Tensors = std::vector<FileTensor>;

void add(Tensors* out, const std::string& name, std::vector<int64_t> shape, const std::string& dtype = "BF16") {
  out->push_back({name, dtype, std::move(shape), {}});
}

std::string shape_data(const ModelShape& m, int64_t rows, int64_t columns) {
  if (!m.data) return {};
  std::string out;
  for (const int64_t value : {rows, columns}) {
    const size_t size = m.shape_dtype == "I64" ? 8 : 4;  // little-endian: the low bytes come first
    out.append(reinterpret_cast<const char*>(&value), size);
  }
  return out;
}

void add_expert_linear(Tensors* out, const ModelShape& m, const std::string& module, int64_t rows, int64_t columns) {
  if (m.group == 0) return add(out, module + ".weight", {rows, columns});
  add(out, module + ".weight_packed", {rows, columns / 8}, "I32");
  add(out, module + ".weight_scale", {rows, columns / m.group});
  out->push_back({module + ".weight_shape", m.shape_dtype, {2}, shape_data(m, rows, columns)});
}

void add_mlp(Tensors* out, const std::string& module, int64_t hidden, int64_t inner) {
  add(out, module + "gate_proj.weight", {inner, hidden});
  add(out, module + "up_proj.weight", {inner, hidden});
  add(out, module + "down_proj.weight", {hidden, inner});
}

void add_experts(Tensors* out, const ModelShape& m, const std::string& experts) {
  if (m.fused_experts) {
    add(out, experts + "gate_up_proj", {m.experts, 2 * m.moe_inner, m.hidden});
    add(out, experts + "down_proj", {m.experts, m.hidden, m.moe_inner});
    return;
  }
  for (int64_t e = 0; e < m.experts; ++e) {
    const std::string expert = experts + std::to_string(e) + ".";
    add_expert_linear(out, m, expert + "gate_proj", m.moe_inner, m.hidden);
    add_expert_linear(out, m, expert + "up_proj", m.moe_inner, m.hidden);
    add_expert_linear(out, m, expert + "down_proj", m.hidden, m.moe_inner);
  }
}

const char* flag(bool value) { return value ? "true" : "false"; }

}  // namespace

ModelShape kimi_k26() {
  ModelShape m;
  m.prefix = "language_model.";
  m.vocab = 163840, m.hidden = 7168, m.inner = 18432, m.moe_inner = 2048, m.layers = 61, m.dense = 1;
  m.heads = 64, m.q_lora = 1536, m.kv_lora = 512, m.nope = 128, m.rope = 64, m.v = 128;
  m.experts = 384, m.top_k = 8, m.shared = 1, m.group = 32;
  m.data = false;
  return m;
}

std::vector<FileTensor> kimi_vision_tensors() {
  Tensors out;
  const auto both = [&](const std::string& module, std::vector<int64_t> weight, int64_t bias) {
    add(&out, module + ".weight", std::move(weight));
    add(&out, module + ".bias", {bias});
  };
  both("vision_tower.patch_embed.proj", {1152, 3, 14, 14}, 1152);
  add(&out, "vision_tower.patch_embed.pos_emb.weight", {64, 64, 1152});
  for (int i = 0; i < 27; ++i) {
    const std::string block = "vision_tower.encoder.blocks." + std::to_string(i) + ".";
    both(block + "norm0", {1152}, 1152);
    both(block + "norm1", {1152}, 1152);
    both(block + "wqkv", {3456, 1152}, 3456);
    both(block + "wo", {1152, 1152}, 1152);
    both(block + "mlp.fc0", {4304, 1152}, 4304);
    both(block + "mlp.fc1", {1152, 4304}, 1152);
  }
  both("vision_tower.encoder.final_layernorm", {1152}, 1152);
  both("mm_projector.pre_norm", {1152}, 1152);
  both("mm_projector.proj.0", {4608, 4608}, 4608);
  both("mm_projector.proj.2", {7168, 4608}, 7168);
  return out;
}

std::vector<FileTensor> layer_tensors(const ModelShape& m, int64_t layer) {
  Tensors out;
  const std::string at = m.prefix + "model.layers." + std::to_string(layer) + ".";
  const std::string attn = at + "self_attn.";
  add(&out, at + "input_layernorm.weight", {m.hidden});
  add(&out, at + "post_attention_layernorm.weight", {m.hidden});
  const int64_t q_rows = m.heads * (m.nope + m.rope);
  if (m.q_lora == 0) {
    add(&out, attn + "q_proj.weight", {q_rows, m.hidden});
  } else {
    add(&out, attn + "q_a_proj.weight", {m.q_lora, m.hidden});
    add(&out, attn + "q_a_layernorm.weight", {m.q_lora});
    add(&out, attn + "q_b_proj.weight", {q_rows, m.q_lora});
  }
  add(&out, attn + "kv_a_proj_with_mqa.weight", {m.kv_lora + m.rope, m.hidden});
  add(&out, attn + "kv_a_layernorm.weight", {m.kv_lora});
  add(&out, attn + "kv_b_proj.weight", {m.heads * (m.nope + m.v), m.kv_lora});
  add(&out, attn + "o_proj.weight", {m.hidden, m.heads * m.v});
  if (layer < m.dense || m.experts == 0) {
    add_mlp(&out, at + "mlp.", m.hidden, m.inner);
    return out;
  }
  add(&out, at + "mlp.gate.weight", {m.experts, m.hidden});
  if (m.router_bias) add(&out, at + "mlp.gate.e_score_correction_bias", {m.experts}, "F32");
  if (m.shared > 0) add_mlp(&out, at + "mlp.shared_experts.", m.hidden, m.moe_inner * m.shared);
  add_experts(&out, m, at + "mlp.experts.");
  return out;
}

std::vector<FileTensor> outer_tensors(const ModelShape& m) {
  Tensors out;
  add(&out, m.prefix + "model.embed_tokens.weight", {m.vocab, m.hidden});
  add(&out, m.prefix + "model.norm.weight", {m.hidden});
  if (!m.tied) add(&out, m.prefix + "lm_head.weight", {m.vocab, m.hidden});
  return out;
}

std::vector<FileTensor> model_tensors(const ModelShape& m) {
  Tensors out = outer_tensors(m);
  for (int64_t layer = 0; layer < m.layers; ++layer)
    for (FileTensor& tensor : layer_tensors(m, layer)) out.push_back(std::move(tensor));
  return out;
}

std::string config_json(const ModelShape& m) {
  const auto field = [](const char* name, int64_t value) {
    return "\"" + std::string(name) + "\": " + std::to_string(value) + ", ";
  };
  std::string text = "{\"model_type\": \"kimi_k2\", \"rms_norm_eps\": 1e-5, \"rope_theta\": 50000.0, ";
  text += "\"routed_scaling_factor\": 2.5, \"max_position_embeddings\": 4096, ";
  text += field("vocab_size", m.vocab) + field("hidden_size", m.hidden) + field("intermediate_size", m.inner);
  text += field("moe_intermediate_size", m.moe_inner) + field("num_hidden_layers", m.layers);
  text += field("num_nextn_predict_layers", m.mtp) + field("first_k_dense_replace", m.dense);
  text += field("num_attention_heads", m.heads) + field("kv_lora_rank", m.kv_lora);
  text += field("qk_nope_head_dim", m.nope) + field("qk_rope_head_dim", m.rope) + field("v_head_dim", m.v);
  text += field("num_experts_per_tok", m.top_k) + field("n_shared_experts", m.shared);
  text += m.experts ? field("n_routed_experts", m.experts) : std::string();
  text += m.q_lora ? field("q_lora_rank", m.q_lora) : std::string("\"q_lora_rank\": null, ");
  text += m.router_bias ? "" : "\"scoring_func\": \"softmax\", \"topk_method\": \"greedy\", ";
  text += std::string("\"tie_word_embeddings\": ") + flag(m.tied);
  if (m.group > 0)
    text +=
        ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", "
        "\"config_groups\": {\"g\": {\"weights\": {\"num_bits\": 4, \"type\": \"int\", \"symmetric\": true, "
        "\"strategy\": \"group\", \"group_size\": " +
        std::to_string(m.group) + "}}}}";
  text += "}";
  return m.prefix.empty() ? text : "{\"model_type\": \"kimi_k25\", \"text_config\": " + text + "}";
}

void write_model(const TempDir& dir, const ModelShape& m, const std::vector<FileTensor>& tensors) {
  dir.write("config.json", config_json(m));
  dir.write("model.safetensors", safetensors_file(tensors));
}

}  // namespace ddtree::testing
