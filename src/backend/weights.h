// What a backend needs of a model's weights: sources in checkpoint order go in, private prepared layouts come out.
// Sources need to live only during prepare().
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/linear.h"

namespace ddtree {

// Rotation of `dim` values per head: interleaved pairs (x0,x1),(x2,x3) as DeepSeek and Kimi, or halves (xi, x(i+dim/2))
// as Qwen and Llama.
struct Rope {
  int32_t dim = 0;
  bool interleaved = false;
  float amplitude = 1;           // multiplies cos and sin
  std::vector<double> inv_freq;  // [dim / 2]; see rope_angle
};

// The angle of pair i. A float32 product, as in the code that models are trained and served with: at long contexts an
// exact one would be off by more than float32 rounding from what they have learnt.
inline float rope_angle(const Rope& rope, int32_t position, size_t i) {
  return static_cast<float>(position) * static_cast<float>(rope.inv_freq[i]);
}

// Multi-head latent attention (models with kv_lora). q_a and q_a_norm are empty where the model has q_proj (then in
// q_b).
struct MlaSource {
  int32_t heads = 0, kv_lora = 0, nope = 0, rope_dim = 0, v = 0;
  Linear q_a, q_b, kv_a, kv_b, o;
  TensorView q_a_norm, kv_a_norm;
  float norm_eps = 0;
  Rope rope;
};

// Grouped-query attention with per-head norms of q and k (empty views: none).
struct GqaSource {
  int32_t heads = 0, kv_heads = 0, head_dim = 0;
  Linear q, k, v, o;
  TensorView q_norm, k_norm;
  float norm_eps = 0;
  Rope rope;
};

struct MlpSource {
  Linear gate, up, down;
};

struct MoeRouting {
  enum class Score : uint8_t { kSigmoid, kSoftmax };
  Score score = Score::kSigmoid;
  int32_t top_k = 0;
  int32_t groups = 1, top_groups = 1;  // experts in equal groups; only the best groups take part
  bool group_by_top2 = true;  // group score: sum of its two best (noaux_tc), else its best (group_limited_greedy)
  bool normalise = true;      // divide the chosen weights by their sum
  float scale = 1;            // then multiply by this
};

struct MoeSource {
  MoeRouting routing;
  Linear router;    // [experts, hidden]
  TensorView bias;  // [experts] F32 or BF16; for selection only; empty: none
  std::vector<MlpSource> experts;
  MlpSource shared;  // empty linears: none
};

// A backend's private copies. Each backend derives its own; they may not outlive it.
struct PreparedLinear {
  virtual ~PreparedLinear() = default;
};
struct PreparedMla {
  virtual ~PreparedMla() = default;
};
struct PreparedGqa {
  virtual ~PreparedGqa() = default;
};
struct PreparedMlp {
  virtual ~PreparedMlp() = default;
};
struct PreparedMoe {
  virtual ~PreparedMoe() = default;
};

}  // namespace ddtree
