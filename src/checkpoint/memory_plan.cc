#include "checkpoint/memory_plan.h"

#include <numeric>

#include <fmt/core.h>

namespace ddtree {
namespace {

int64_t bytes_of(const Linear& linear) { return linear.weight.bytes() + linear.scale.bytes(); }

int64_t bytes_of(const std::vector<Linear>& linears) {
  int64_t bytes = 0;
  for (const Linear& linear : linears) bytes += bytes_of(linear);
  return bytes;
}

}  // namespace

std::string_view weight_group_name(WeightGroup group) {
  switch (group) {
    case WeightGroup::kEmbedding: return "embedding";
    case WeightGroup::kHead: return "head";
    case WeightGroup::kAttention: return "attention";
    case WeightGroup::kDenseMlp: return "dense_mlp";
    case WeightGroup::kRouter: return "router";
    case WeightGroup::kSharedExperts: return "shared_experts";
    case WeightGroup::kRoutedExperts: return "routed_experts";
    case WeightGroup::kNorms: return "norms";
  }
  return "";
}

int64_t WeightBytes::total() const { return std::accumulate(group.begin(), group.end(), int64_t{0}); }

WeightBytes count_bytes(const DeepseekSource& source) {
  WeightBytes n;
  n[WeightGroup::kEmbedding] = bytes_of(source.embed);
  n[WeightGroup::kHead] = source.head.weight.data == source.embed.weight.data ? 0 : bytes_of(source.head);
  n[WeightGroup::kNorms] = source.norm.bytes();
  for (const LayerSource& l : source.layers) {
    n[WeightGroup::kAttention] +=
        bytes_of(l.q_a) + bytes_of(l.q_b) + bytes_of(l.kv_a) + bytes_of(l.kv_b) + bytes_of(l.o);
    n[WeightGroup::kDenseMlp] += bytes_of(l.gate) + bytes_of(l.up) + bytes_of(l.down);
    n[WeightGroup::kRouter] += bytes_of(l.router) + l.router_bias.bytes();
    n[WeightGroup::kSharedExperts] += bytes_of(l.shared_gate) + bytes_of(l.shared_up) + bytes_of(l.shared_down);
    n[WeightGroup::kRoutedExperts] += bytes_of(l.expert_gate) + bytes_of(l.expert_up) + bytes_of(l.expert_down);
    n[WeightGroup::kNorms] += l.attn_norm.bytes() + l.ffn_norm.bytes() + l.q_a_norm.bytes() + l.kv_a_norm.bytes();
  }
  return n;
}

int64_t count_bytes(const DrafterSource& source) {
  int64_t n = bytes_of(source.fc) + source.hidden_norm.bytes() + source.norm.bytes();
  for (const DrafterLayerSource& l : source.layers) {
    n += bytes_of(l.q) + bytes_of(l.k) + bytes_of(l.v) + bytes_of(l.o);
    n += bytes_of(l.gate) + bytes_of(l.up) + bytes_of(l.down);
    n += l.attn_norm.bytes() + l.ffn_norm.bytes() + l.q_norm.bytes() + l.k_norm.bytes();
  }
  return n;
}

int64_t kv_bytes_per_token(const ModelConfig& config, int64_t value_bytes) {
  return config.num_layers * config.kv_row_width() * value_bytes;
}

int64_t kv_bytes_per_token(const DrafterConfig& config, int64_t value_bytes) {
  return config.num_layers * 2 * config.num_kv_heads * config.head_dim * value_bytes;
}

Result<MemoryPlan> plan_memory(const DeepseekSource& source, const ModelConfig& config, int64_t tp) {
  if (tp < 1) return Error{Code::kInvalidArgument, fmt::format("--tp is {}, must be at least 1", tp)};
  TRY_ASSIGN(const DeepseekSource part, shard_deepseek(source, config, Rank{0, tp}));
  return MemoryPlan{.tp = tp, .weights = count_bytes(part), .kv_bytes_per_token = kv_bytes_per_token(config)};
}

}  // namespace ddtree
