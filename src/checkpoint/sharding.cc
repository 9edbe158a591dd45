#include "checkpoint/sharding.h"

#include <string>

#include <fmt/core.h>

namespace ddtree {
namespace {

constexpr int64_t kValuesPerWord = 8;  // of an I32 of packed INT4

TensorView slice_columns(const TensorView& view, int64_t first, int64_t count) {
  CHECK_EQ(view.rank, 2);
  CHECK(first >= 0 && count >= 0 && first + count <= view.dim[1]);
  TensorView part = view;
  part.data = static_cast<char*>(view.data) + first * dtype_size(view.dtype);
  part.dim[1] = count;
  return part;
}

Error refuse(std::string_view name, const std::string& what, Rank rank) {
  return Error{
      Code::kInvalidArgument,
      fmt::format("tensor parallelism {} does not fit this model: {} {}; choose another --tp", rank.count, name, what)};
}

Result<Linear> columns_of(const Linear& whole, int64_t first, int64_t count, Rank rank, std::string_view name) {
  Linear part = whole;
  part.in = count;
  if (whole.group_size == 0) {
    part.weight = slice_columns(whole.weight, first, count);
    return part;
  }
  const int64_t group = whole.group_size;
  if (count % group != 0)
    return refuse(
        name,
        fmt::format("would have {} of {} columns on a rank, no multiple of group_size {}", count, whole.in, group),
        rank);
  part.weight = slice_columns(whole.weight, first / kValuesPerWord, count / kValuesPerWord);
  part.scale = slice_columns(whole.scale, first / group, count / group);
  return part;
}

// Shards one layer in place; every line is one rule.
struct LayerSharder {
  const ModelConfig& config;
  Rank rank;

  Status split(Linear* linear, Split how, int64_t unit, std::string_view name) const {
    if (linear->empty()) return {};
    TRY_ASSIGN(*linear, shard_linear(*linear, how, unit, rank, name));
    return {};
  }

  Status layer(LayerSource* l) const {
    TRY(split(&l->q_b, Split::kRows, config.qk_head_dim(), "q_b_proj"));
    TRY(split(&l->kv_b, Split::kRows, config.qk_nope_head_dim + config.v_head_dim, "kv_b_proj"));
    TRY(split(&l->o, Split::kColumns, config.v_head_dim, "o_proj"));
    TRY(mlp(&l->gate, &l->up, &l->down, "mlp"));
    TRY(mlp(&l->shared_gate, &l->shared_up, &l->shared_down, "mlp.shared_experts"));
    for (size_t e = 0; e < l->expert_gate.size(); ++e)
      TRY(mlp(&l->expert_gate[e], &l->expert_up[e], &l->expert_down[e], "mlp.experts"));
    return {};
  }

  Status mlp(Linear* gate, Linear* up, Linear* down, const char* name) const {
    TRY(split(gate, Split::kRows, 1, name));
    TRY(split(up, Split::kRows, 1, name));
    return split(down, Split::kColumns, 1, name);
  }
};

}  // namespace

Result<Linear> shard_linear(const Linear& whole, Split split, int64_t unit, Rank rank, std::string_view name) {
  CHECK(rank.count >= 1 && rank.index >= 0 && rank.index < rank.count);
  const int64_t extent = split == Split::kRows ? whole.out : whole.in;
  CHECK_EQ(extent % unit, 0);
  if (extent / unit % rank.count != 0)
    return refuse(name,
                  fmt::format("has {} {} to divide", extent / unit,
                              unit > 1                ? "heads"
                              : split == Split::kRows ? "rows"
                                                      : "columns"),
                  rank);
  const int64_t count = extent / rank.count;
  const int64_t first = count * rank.index;
  if (split == Split::kRows) return slice_rows(whole, first, count);
  return columns_of(whole, first, count, rank, name);
}

Result<DeepseekSource> shard_deepseek(const DeepseekSource& whole, const ModelConfig& config, Rank rank) {
  DeepseekSource part = whole;
  TRY_ASSIGN(part.embed, shard_linear(whole.embed, Split::kRows, 1, rank, "embed_tokens"));
  TRY_ASSIGN(part.head, shard_linear(whole.head, Split::kRows, 1, rank, "lm_head"));
  const LayerSharder sharder{config, rank};
  for (LayerSource& layer : part.layers) TRY(sharder.layer(&layer));
  return part;
}

}  // namespace ddtree
