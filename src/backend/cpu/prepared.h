// The cpu backend's prepared weights: packed matrices and the sizes that its verbs need.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/cpu/pack.h"
#include "backend/cpu/rope.h"
#include "backend/cpu/routing.h"
#include "backend/weights.h"

namespace ddtree::cpu {

struct CpuLinear : PreparedLinear {
  Matrix w;
};

struct Mlp {
  Matrix gate_up, down;
  int64_t inter = 0;
  int64_t bytes() const { return gate_up.bytes() + down.bytes(); }
};

struct CpuMlp : PreparedMlp {
  Mlp mlp;
};

struct CpuMoe : PreparedMoe {
  explicit CpuMoe(Router router) : choice(std::move(router)) {}
  Router choice;
  Matrix router;
  std::vector<Mlp> experts;
  std::optional<Mlp> shared;
};

struct CpuMla : PreparedMla {
  int64_t heads = 0, kv_lora = 0, nope = 0, rope_dim = 0, v = 0;
  int64_t q_rank = 0;  // 0: the model has no q_a, and `in` holds the queries themselves
  Matrix in;           // q_a (or q), then kv_a: one pass over x
  Matrix q_b;
  std::vector<Matrix> key_up;    // per head: W_UKᵀ, [kv_lora, nope]
  std::vector<Matrix> value_up;  // per head: W_UV, [v, kv_lora]
  Matrix o;
  std::vector<float> q_a_norm, kv_a_norm;
  float eps = 0;
  int rope = 0;

  int64_t query_width() const { return heads * (nope + rope_dim); }
  int64_t key_width() const { return kv_lora + rope_dim; }
};

struct CpuGqa : PreparedGqa {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  Matrix q, kv, o;
  std::vector<float> q_norm, k_norm;
  float eps = 0;
  int rope = 0;
};

// From checked sources.
Result<std::unique_ptr<PreparedLinear>> prepare_linear(std::span<const Linear> parts, WeightArena& arena);
Result<std::unique_ptr<PreparedMlp>> prepare_mlp(const MlpSource& source, WeightArena& arena);
Result<std::unique_ptr<PreparedMoe>> prepare_moe(const MoeSource& source, WeightArena& arena);
Result<std::unique_ptr<PreparedMla>> prepare_mla(const MlaSource& source, WeightArena& arena, RopeTables& ropes);
Result<std::unique_ptr<PreparedGqa>> prepare_gqa(const GqaSource& source, WeightArena& arena, RopeTables& ropes);

}  // namespace ddtree::cpu
