// How many bytes a model needs, computed from headers alone.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "checkpoint/drafter_config.h"
#include "checkpoint/model_config.h"
#include "checkpoint/sharding.h"
#include "checkpoint/weights_source.h"

namespace ddtree {

enum class WeightGroup : uint8_t {
  kEmbedding,
  kHead,
  kAttention,
  kDenseMlp,
  kRouter,
  kSharedExperts,
  kRoutedExperts,
  kNorms,
};
inline constexpr int kWeightGroups = 8;
std::string_view weight_group_name(WeightGroup group);

struct WeightBytes {
  std::array<int64_t, kWeightGroups> group = {};

  int64_t& operator[](WeightGroup g) { return group[static_cast<size_t>(g)]; }
  int64_t operator[](WeightGroup g) const { return group[static_cast<size_t>(g)]; }
  int64_t total() const;
};

// As stored: INT4 words and their scales, plain weights in the file's dtype. A tied head costs nothing.
WeightBytes count_bytes(const DeepseekSource& source);
int64_t count_bytes(const DrafterSource& source);

// Per token of context and per rank: every rank holds the whole latent cache. `value_bytes` is the cache's element
// size.
int64_t kv_bytes_per_token(const ModelConfig& config, int64_t value_bytes = 2);
int64_t kv_bytes_per_token(const DrafterConfig& config, int64_t value_bytes = 2);

// One rank's share. All ranks' are equal, since uneven divisions are refused.
struct MemoryPlan {
  int64_t tp = 1;
  WeightBytes weights;
  int64_t kv_bytes_per_token = 0;
};
Result<MemoryPlan> plan_memory(const DeepseekSource& source, const ModelConfig& config, int64_t tp);

}  // namespace ddtree
