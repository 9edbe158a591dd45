// The oracle's prepared weights: each source's matrices in float32, with the sizes that its verbs need.
#pragma once

#include <vector>

#include "backend/ref/matrix.h"
#include "backend/weights.h"

namespace ddtree::ref {

struct Mlp {
  Matrix gate, up, down;
};

struct RefLinear : PreparedLinear {
  Matrix w;
};

struct RefMla : PreparedMla {
  int64_t heads = 0, kv_lora = 0, nope = 0, v = 0;
  Matrix q_a, q_b, kv_a, kv_b, o;
  std::vector<float> q_a_norm, kv_a_norm;
  double eps = 0;
  Rope rope;
};

struct RefGqa : PreparedGqa {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  Matrix q, k, v, o;
  std::vector<float> q_norm, k_norm;
  double eps = 0;
  Rope rope;
};

struct RefMlp : PreparedMlp {
  Mlp w;
};

struct RefMoe : PreparedMoe {
  MoeRouting routing;
  Matrix router;
  std::vector<float> bias;
  std::vector<Mlp> experts;
  Mlp shared;
};

Result<Mlp> load_mlp(const MlpSource& source);
std::vector<double> run_mlp(const Mlp& w, const float* x);  // down(silu(gate · x) ⊙ up · x)

}  // namespace ddtree::ref
