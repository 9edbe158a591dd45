// Tensor-parallel sharding: which part of every weight a rank holds, as views into the same mapped file. Weights split
// by rows need no sum afterwards; those split by columns (o_proj and every down_proj) yield partial sums that the ranks
// add.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weights_source.h"

namespace ddtree {

struct Rank {
  int64_t index = 0;
  int64_t count = 1;  // the degree of tensor parallelism
};

enum class Split : uint8_t { kRows, kColumns };

// Rank `rank`'s equal part of `whole`. `unit` rows or columns stay together (a head); of a quantised weight, columns
// are taken in whole groups, and the scale's columns with them. Refuses what cannot be divided so; `name` is for the
// message.
Result<Linear> shard_linear(const Linear& whole, Split split, int64_t unit, Rank rank, std::string_view name);

// embed, head: vocabulary rows. q_b, kv_b: rows by head. o: columns by head. gate, up of the dense MLP, the shared and
// each routed expert: rows; their down: columns. Whole on every rank: q_a, kv_a, the router and its bias, all norms.
Result<DeepseekSource> shard_deepseek(const DeepseekSource& whole, const ModelConfig& config, Rank rank);

}  // namespace ddtree
