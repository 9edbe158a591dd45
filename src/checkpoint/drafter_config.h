// DrafterConfig: the config.json of a DFlash block drafter (architecture DFlashDraftModel), parsed and checked.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/rope.h"

namespace ddtree {

// Which factor YaRN puts on cos and sin. Drafters published for Kimi are reported to be trained with either.
enum class YarnAmplitude : uint8_t {
  kRatio,   // ms(mscale) / ms(mscale_all_dim), as transformers computes it
  kLegacy,  // 0.1 · ln(factor) + 1
};

struct DrafterLayerConfig {
  int64_t window = 0;         // keys of position ≥ own position − (window − 1) are seen; 0: all of the context
  bool causal_block = false;  // inside the block a slot sees only those up to itself
};

struct DrafterConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  double rms_norm_eps = 0;
  int64_t max_position = 0;
  DType dtype = DType::kBF16;

  // Slots of one block, the anchor in slot 0 included: a block proposes block_size − 1 tokens. Files of other lineages
  // count the proposed tokens only; their architectures are refused, so the number needs no guess.
  int64_t block_size = 0;
  int32_t mask_token_id = 0;
  int64_t num_target_layers = 0;          // 0: not declared
  std::vector<int64_t> target_layer_ids;  // ascending; i: the residual stream behind the target's layer i
  std::vector<DrafterLayerConfig> layers;

  RopeConfig rope;
  std::vector<double> inv_freq;  // [head_dim / 2], rotating halves
  double rope_amplitude = 1;     // multiplies cos and sin

  int64_t num_taps() const { return static_cast<int64_t>(target_layer_ids.size()); }
};

struct DrafterOptions {
  YarnAmplitude amplitude = YarnAmplitude::kRatio;
};

Result<DrafterConfig> parse_drafter_config(std::string_view text, const DrafterOptions& options = {});
Result<DrafterConfig> load_drafter_config(const std::string& dir, const DrafterOptions& options = {});

// The drafter borrows the target's embedding, head and hidden states: refuses a pair that cannot work.
Status check_drafter_fits(const DrafterConfig& drafter, const ModelConfig& target);

}  // namespace ddtree
