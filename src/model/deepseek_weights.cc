#include "model/deepseek_weights.h"

#include <utility>

namespace ddtree {
namespace {

MoeRouting routing(const ModelConfig& config) {
  MoeRouting r;
  r.score = config.scoring == Scoring::kSigmoid ? MoeRouting::Score::kSigmoid : MoeRouting::Score::kSoftmax;
  r.top_k = static_cast<int32_t>(config.num_experts_per_token);
  if (config.topk_method != TopkMethod::kGreedy) {
    r.groups = static_cast<int32_t>(config.num_groups);
    r.top_groups = static_cast<int32_t>(config.topk_groups);
  }
  r.group_by_top2 = config.topk_method == TopkMethod::kNoauxTc;
  r.normalise = config.norm_topk_prob;
  r.scale = static_cast<float>(config.routed_scaling_factor);
  return r;
}

MlaSource mla_source(const ModelConfig& config, const LayerSource& layer) {
  MlaSource mla;
  mla.heads = static_cast<int32_t>(config.num_heads);
  mla.kv_lora = static_cast<int32_t>(config.kv_lora_rank);
  mla.nope = static_cast<int32_t>(config.qk_nope_head_dim);
  mla.rope_dim = static_cast<int32_t>(config.qk_rope_head_dim);
  mla.v = static_cast<int32_t>(config.v_head_dim);
  mla.q_a = layer.q_a;
  mla.q_b = layer.q_b;
  mla.kv_a = layer.kv_a;
  mla.kv_b = layer.kv_b;
  mla.o = layer.o;
  mla.q_a_norm = layer.q_a_norm;
  mla.kv_a_norm = layer.kv_a_norm;
  mla.norm_eps = static_cast<float>(config.mla_lora_norm_eps);
  mla.rope = {mla.rope_dim, true, static_cast<float>(config.rope_amplitude), config.inv_freq};
  return mla;
}

MoeSource moe_source(const ModelConfig& config, const LayerSource& layer) {
  MoeSource moe;
  moe.routing = routing(config);
  moe.router = layer.router;
  moe.bias = layer.router_bias;
  for (size_t e = 0; e < layer.expert_gate.size(); ++e)
    moe.experts.push_back({layer.expert_gate[e], layer.expert_up[e], layer.expert_down[e]});
  moe.shared = {layer.shared_gate, layer.shared_up, layer.shared_down};
  return moe;
}

}  // namespace

Result<DeepseekWeights> prepare_deepseek(Backend& backend, const ModelConfig& config, const DeepseekSource& source,
                                         const std::function<void(int64_t done, int64_t layers)>& progress) {
  DeepseekWeights w(backend);
  TRY_ASSIGN(w.embed, backend.prepare(std::span(&source.embed, 1)));
  if (!config.tie_word_embeddings) {
    TRY_ASSIGN(w.head, backend.prepare(std::span(&source.head, 1)));
  }
  TRY_ASSIGN(w.norm, w.memory.vector(source.norm));
  for (size_t i = 0; i < source.layers.size(); ++i) {
    if (progress) progress(static_cast<int64_t>(i), config.num_layers);
    const LayerSource& from = source.layers[i];
    DeepseekLayer& to = w.layers.emplace_back();
    TRY_ASSIGN(to.attn_norm, w.memory.vector(from.attn_norm));
    TRY_ASSIGN(to.ffn_norm, w.memory.vector(from.ffn_norm));
    TRY_ASSIGN(to.mla, backend.prepare(mla_source(config, from)));
    if (config.is_moe_layer(static_cast<int64_t>(i))) {
      TRY_ASSIGN(to.moe, backend.prepare(moe_source(config, from)));
    } else {
      TRY_ASSIGN(to.mlp, backend.prepare(MlpSource{from.gate, from.up, from.down}));
    }
  }
  return w;
}

}  // namespace ddtree
