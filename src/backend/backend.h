// Backend: the waist between the models and the machines. ref/ is the oracle, cpu/ and cuda/ the products.
//
// Shapes: T rows of the staged batch, D hidden, H heads. Activations are of activation_dtype(), row-major, on the
// backend's memory. A row's result depends only on that row's own history (its inputs and the keys it sees, in position
// order), bit for bit: never on the other rows of the batch, on chunking, or on the number of threads.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "backend/batch.h"
#include "backend/weights.h"
#include "base/result.h"
#include "tensor/buffer.h"

namespace ddtree {

// One layer's cache: physical rows [rows, width]. Pages come first (page p = rows 64·p …), then the streams' scratch
// rows. MLA: width = kv_lora + rope_dim, the normalised latent then the rotated key. GQA: width = 2 · kv_heads ·
// head_dim, keys then values.
using KvLayer = TensorView;

struct AttendSpec {
  enum class Mask : uint8_t {
    kTree,   // context ∪ ancestors ∪ self (a causal chunk: context ∪ rows up to itself)
    kBlock,  // context ∪ every row of the segment: a drafter's bidirectional block
  };
  Mask mask = Mask::kTree;
  float scale = 1;
  int32_t heads = 0;
  int32_t kv_heads = 1;  // 1 for MLA
  int32_t qk_dim = 0;    // MLA: kv_lora + rope_dim
  int32_t v_dim = 0;     // MLA: kv_lora, the first values of the key
  int32_t window = 0;    // 0: none; else keys of position ≥ own position − (window − 1)
};

// Results of the head, one row per Batch::head_row (R of them), float32 on the host.
struct HeadResult {
  TensorView top_value;  // [R, k] the k largest logits, descending, NaN last; equal ones by ascending id
  TensorView top_id;     // [R, k] I32
  TensorView lse;        // [R] log of the sum of exp over the vocabulary
  TensorView logits;     // [R, vocabulary], or empty when only the top is wanted
};

enum class Phase : uint8_t { kEmbed, kAttention, kDense, kExperts, kHead, kDraft, kTree, kSample, kCommit, kHost };
inline constexpr int kPhases = 10;
std::string_view phase_name(Phase phase);

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // "ref", "cpu (AVX-512)", …
  virtual DType activation_dtype() const = 0;
  virtual DType kv_dtype() const = 0;

  // Memory and weights. `what` names the purpose in an out-of-memory message.
  virtual Result<Buffer> allocate(int64_t bytes, std::string_view what) = 0;
  virtual Result<std::unique_ptr<PreparedLinear>> prepare(
      std::span<const Linear> parts) = 0;  // same `in`, stacked along out
  virtual Result<std::unique_ptr<PreparedMla>> prepare(const MlaSource& source) = 0;
  virtual Result<std::unique_ptr<PreparedGqa>> prepare(const GqaSource& source) = 0;
  virtual Result<std::unique_ptr<PreparedMlp>> prepare(const MlpSource& source) = 0;
  virtual Result<std::unique_ptr<PreparedMoe>> prepare(const MoeSource& source) = 0;
  virtual Result<Buffer> prepare_vector(TensorView values) = 0;  // a norm's gain, as float32 [n]

  // One forward pass: stage() fixes the batch that the verbs below refer to; it must live until the next stage() or
  // finish(). Lists of rows that verbs take are read before the verb returns. finish() joins the device and reports its
  // failures.
  virtual void stage(const Batch& batch) = 0;
  virtual Status finish() = 0;

  // Time since the previous mark goes to `phase`. take_phase_ms() reads the sums and starts again at zero.
  virtual void mark(Phase phase) = 0;
  virtual std::array<double, kPhases> take_phase_ms() = 0;
  virtual int64_t take_weight_bytes() = 0;  // weight bytes the verbs have read since the last call

  // Verbs. Outputs never overlap inputs unless said.
  virtual void embed(TensorView out, const PreparedLinear& table) = 0;                  // [T, D] of Batch::token
  virtual void rms_norm(TensorView out, TensorView x, TensorView gain, float eps) = 0;  // [n, D]
  virtual void add_rms_norm(TensorView out, TensorView residual, TensorView delta, TensorView gain,
                            float eps) = 0;                     // residual += delta first
  virtual void add(TensorView residual, TensorView delta) = 0;  // residual += delta
  virtual void gather_rows(TensorView out, TensorView x, std::span<const int32_t> rows) = 0;
  virtual void linear(TensorView out, TensorView x, const PreparedLinear& w) = 0;  // [n, out] of [n, in]
  // MLA: norms, absorption and RoPE; writes each row's latent to its kv_row. q [T, H, kv_lora + rope_dim].
  virtual void mla_project(TensorView q, TensorView x, const PreparedMla& w, KvLayer cache) = 0;
  virtual void mla_output(TensorView out, TensorView attended, const PreparedMla& w) = 0;  // [T, D] of [T, H, kv_lora]
  // GQA: norms and RoPE; writes each row's keys and values to its kv_row. q [T, H, head_dim].
  virtual void gqa_project(TensorView q, TensorView x, const PreparedGqa& w, KvLayer cache) = 0;
  virtual void gqa_context(TensorView x, const PreparedGqa& w, KvLayer cache) = 0;  // keys and values only
  virtual void gqa_output(TensorView out, TensorView attended, const PreparedGqa& w) = 0;
  virtual void attend(TensorView out, TensorView q, KvLayer cache, const AttendSpec& spec) = 0;  // out [T, H, v_dim]
  virtual void mlp(TensorView out, TensorView x, const PreparedMlp& w) = 0;  // down(silu(gate·x) ⊙ up·x)
  virtual void moe(TensorView out, TensorView x,
                   const PreparedMoe& w) = 0;  // route, experts in ascending order, shared
  virtual void head(const HeadResult& out, TensorView x, const PreparedLinear& w) = 0;  // x [R, D]
  // Copies rows inside each cache: rows[i].second receives rows[i].first. All reads happen before any write.
  virtual void copy_rows(std::span<const KvLayer> caches, std::span<const std::pair<int32_t, int32_t>> rows) = 0;
};

}  // namespace ddtree
