// The weights of a model by role, as views into the mapped checkpoint: names, dtypes and shapes checked against the
// configuration, nothing missing and nothing left over. Values are in checkpoint order and may be unaligned for their
// dtype.
#pragma once

#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/drafter_config.h"
#include "checkpoint/model_config.h"
#include "tensor/linear.h"

namespace ddtree {

// Roles a layer does not have are empty (Linear::empty(), TensorView::empty()).
struct LayerSource {
  TensorView attn_norm, ffn_norm;

  Linear q_a;           // empty where the model has q_proj
  TensorView q_a_norm;  // 〃
  Linear q_b;           // q_b_proj or q_proj: rows per head [nope | rope]
  Linear kv_a;          // rows [latent | rope]
  TensorView kv_a_norm;
  Linear kv_b;  // rows per head [key nope | value]
  Linear o;

  Linear gate, up, down;  // dense layers

  Linear router;  // MoE layers, from here on
  TensorView router_bias;
  std::vector<Linear> expert_gate, expert_up, expert_down;
  Linear shared_gate, shared_up, shared_down;
};

struct DeepseekSource {
  Linear embed;
  Linear head;  // the same views as embed where the embeddings are tied
  TensorView norm;
  std::vector<LayerSource> layers;
};

// From headers alone: no weight is read.
Result<DeepseekSource> map_deepseek(const Checkpoint& checkpoint, const ModelConfig& config);

// map_deepseek, then check_values.
Result<DeepseekSource> load_deepseek(const Checkpoint& checkpoint, const ModelConfig& config);

struct DrafterLayerSource {
  TensorView attn_norm, ffn_norm;
  Linear q, k, v, o;
  TensorView q_norm, k_norm;  // per head
  Linear gate, up, down;
};

// A DFlash drafter; embedding and head are the target's.
struct DrafterSource {
  Linear fc;  // [hidden, taps · hidden]
  TensorView hidden_norm;
  TensorView norm;
  std::vector<DrafterLayerSource> layers;
};

// As for the target: from headers alone, and with the values checked.
Result<DrafterSource> map_dflash(const Checkpoint& checkpoint, const DrafterConfig& config);
Result<DrafterSource> load_dflash(const Checkpoint& checkpoint, const DrafterConfig& config);

// Reads the small tensors whose values could poison everything: every scale, router bias and norm must be finite, every
// weight_shape must repeat the shape of its weight_packed.
Status check_values(const Checkpoint& checkpoint);

}  // namespace ddtree
