// Rotary position embedding: the rotation speeds of a head and the factors that YaRN puts on them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/json.h"

namespace ddtree {

enum class RopeType : uint8_t { kPlain, kYarn };

struct RopeConfig {
  RopeType type = RopeType::kPlain;
  double theta = 0;

  // YaRN only. Defaults are those of the reference implementations.
  double factor = 1;
  int64_t original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;
  std::optional<double> attention_factor = std::nullopt;  // given outright, it replaces the ratio of the two mscales
};

// Speeds [dim / 2]: angle of pair i at position p = p · inv_freq[i].
std::vector<double> rope_inv_freq(const RopeConfig& rope, int64_t dim);

// What cos and sin are multiplied with: ms(mscale) / ms(mscale_all_dim), 1 where both are equal.
double rope_amplitude(const RopeConfig& rope);

// What an MLA softmax scale is multiplied with: ms(mscale_all_dim)².
double rope_softmax_factor(const RopeConfig& rope);

// YaRN's ms(factor, mscale) = 0.1 · mscale · ln(factor) + 1.
double yarn_mscale(double factor, double mscale);

// The rope fields of a configuration object, in either spelling: rope_scaling or rope_parameters, type or rope_type,
// theta beside the block or inside it. Other kinds than plain and YaRN are refused by name.
Result<RopeConfig> parse_rope(const JsonValue& config);

}  // namespace ddtree
