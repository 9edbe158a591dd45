// ModelConfig: one model's config.json (and generation_config.json), parsed, checked and completed with what follows
// from it. A value in it has been checked against its limits and against the others; nothing downstream needs to doubt
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "checkpoint/rope.h"

namespace ddtree {

enum class Scoring : uint8_t { kSigmoid, kSoftmax };

enum class TopkMethod : uint8_t {
  kGreedy,              // plain top-k of the scores
  kGroupLimitedGreedy,  // groups ranked by their best score
  kNoauxTc,             // groups ranked by the sum of their two best biased scores; the bias acts on the selection only
};

struct ModelConfig {
  std::string model_type;    // the file's own, outermost: "kimi_k25", "kimi_k2", "deepseek_v3", "deepseek_v2"
  std::string architecture;  // architectures[0], outermost

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;  // without the multi-token-prediction layers
  int64_t num_mtp_layers = 0;
  int64_t max_position = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  DType dtype = DType::kBF16;  // of the plain weights, as declared; tensors say their own

  // Multi-head latent attention.
  int64_t num_heads = 0;
  int64_t q_lora_rank = 0;  // 0: q_proj instead of q_a_proj, q_a_layernorm, q_b_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  double mla_lora_norm_eps = 0;  // of q_a_layernorm and kv_a_layernorm: rms_norm_eps unless overridden (HF uses 1e-6)
  RopeConfig rope;
  std::vector<double> inv_freq;  // [qk_rope_head_dim / 2]
  double rope_amplitude = 1;     // multiplies cos and sin
  double softmax_scale = 0;      // YaRN's factor included

  // Feed-forward.
  int64_t intermediate_size = 0;      // of the dense layers
  int64_t moe_intermediate_size = 0;  // of one expert
  int64_t first_dense_layers = 0;     // layers [0, n) are dense
  int64_t moe_layer_freq = 1;         // of the others, layer l is MoE iff l mod this is 0
  int64_t num_experts = 0;            // 0: every layer is dense
  int64_t num_experts_per_token = 0;
  int64_t num_shared_experts = 0;  // one MLP of this many times moe_intermediate_size
  int64_t num_groups = 1;
  int64_t topk_groups = 1;
  Scoring scoring = Scoring::kSigmoid;
  TopkMethod topk_method = TopkMethod::kNoauxTc;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1;

  int32_t int4_group_size = 0;  // of quantised Linears; 0: the checkpoint declares none

  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // ascending union of config.json (outer, else text_config) and generation_config.json

  bool is_moe_layer(int64_t layer) const {
    return num_experts > 0 && layer >= first_dense_layers && layer % moe_layer_freq == 0;
  }
  bool has_router_bias() const { return topk_method == TopkMethod::kNoauxTc; }
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t kv_row_width() const { return kv_lora_rank + qk_rope_head_dim; }  // cached values per token and layer
  int64_t shared_intermediate_size() const { return moe_intermediate_size * num_shared_experts; }
  int64_t num_dense_layers() const;
};

struct ConfigOptions {
  std::optional<double> mla_lora_norm_eps;
};

// From the texts of the two files; `generation_text` may be empty. Messages begin with "config.json: …".
Result<ModelConfig> parse_model_config(std::string_view text, std::string_view generation_text = {},
                                       const ConfigOptions& options = {});

// Reads DIR/config.json and, where there, DIR/generation_config.json.
Result<ModelConfig> load_model_config(const std::string& dir, const ConfigOptions& options = {});

}  // namespace ddtree
