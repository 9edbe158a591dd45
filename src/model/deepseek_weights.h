// The prepared weights of a DeepSeek-style decoder: what deepseek.cc calls the backend with.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/memory.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weights_source.h"

namespace ddtree {

struct DeepseekLayer {
  TensorView attn_norm, ffn_norm;
  std::unique_ptr<PreparedMla> mla;
  std::unique_ptr<PreparedMlp> mlp;  // dense layers
  std::unique_ptr<PreparedMoe> moe;  // the others
};

struct DeepseekWeights {
  explicit DeepseekWeights(Backend& backend) : memory(backend) {}

  Memory memory;  // what the norms' views point to
  std::unique_ptr<PreparedLinear> embed;
  std::unique_ptr<PreparedLinear> head;  // null: tied to embed
  TensorView norm;
  std::vector<DeepseekLayer> layers;
};

// Hands every weight to the backend, which keeps its own copy.
Result<DeepseekWeights> prepare_deepseek(Backend& backend, const ModelConfig& config, const DeepseekSource& source,
                                         const std::function<void(int64_t done, int64_t layers)>& progress);

}  // namespace ddtree
