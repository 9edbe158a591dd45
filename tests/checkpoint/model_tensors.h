// The tensors and the config.json of a DeepSeek-style model of any size, from the published naming and shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "file_writer.h"

namespace ddtree::testing {

struct ModelShape {
  std::string prefix = "";
  int64_t vocab = 64, hidden = 64, inner = 96, moe_inner = 64, layers = 3, dense = 1, mtp = 0;
  int64_t heads = 4, q_lora = 32, kv_lora = 48, nope = 16, rope = 8, v = 16;
  int64_t experts = 4, top_k = 2, shared = 1;
  int64_t group = 32;       // of INT4 experts; 0: BF16
  bool router_bias = true;  // else softmax scores, plain top-k
  bool fused_experts = false;
  bool tied = false;
  std::string shape_dtype = "I32";
  bool data = true;  // fill in weight_shape; else leave every byte zero
};

// Kimi K2.6 and its 335 vision tensors.
ModelShape kimi_k26();
std::vector<FileTensor> kimi_vision_tensors();

std::vector<FileTensor> layer_tensors(const ModelShape& m, int64_t layer);
std::vector<FileTensor> outer_tensors(const ModelShape& m);  // embedding, norm, head
std::vector<FileTensor> model_tensors(const ModelShape& m);  // all of the above

std::string config_json(const ModelShape& m);

// A whole model directory with a single model.safetensors.
void write_model(const TempDir& dir, const ModelShape& m, const std::vector<FileTensor>& tensors);

}  // namespace ddtree::testing
