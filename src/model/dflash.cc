// DFlash v1 (arXiv 2602.06036): a few Qwen3-style layers over a block of [anchor, mask, mask, …]. What the target's
// tapped layers said about each committed token becomes, once, a context key and value in every layer; the block's own
// are discarded after the pass.

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/memory.h"
#include "model/drafter.h"

namespace ddtree {
namespace {

struct DflashLayer {
  TensorView attn_norm, ffn_norm;
  std::unique_ptr<PreparedGqa> gqa;
  std::unique_ptr<PreparedMlp> mlp;
  AttendSpec attend;
};

class DflashDrafter final : public BlockDrafter {
 public:
  DflashDrafter(Backend& backend, const DrafterConfig& config, const Decoder& target)
      : be_(backend),
        cfg_(config),
        target_(target),
        taps_(config.target_layer_ids.begin(), config.target_layer_ids.end()),
        memory_(backend) {}

  Status prepare(const DrafterSource& source) {
    TRY_ASSIGN(fc_, be_.prepare(std::span(&source.fc, 1)));
    TRY_ASSIGN(hidden_norm_, memory_.vector(source.hidden_norm));
    TRY_ASSIGN(norm_, memory_.vector(source.norm));
    for (size_t i = 0; i < source.layers.size(); ++i) TRY(prepare_layer(source.layers[i], cfg_.layers[i]));
    return {};
  }

  Status allocate(const DrafterLimits& limits) {
    const int64_t hidden = cfg_.hidden_size, heads = cfg_.num_heads, dim = cfg_.head_dim;
    const int64_t rows = std::max<int64_t>(int64_t{limits.max_streams} * block_size(), limits.max_observed_rows);
    TRY_ASSIGN(residual_, memory_.activations({rows, hidden}));
    TRY_ASSIGN(normed_, memory_.activations({rows, hidden}));
    TRY_ASSIGN(delta_, memory_.activations({rows, hidden}));
    TRY_ASSIGN(query_, memory_.activations({rows, heads, dim}));
    TRY_ASSIGN(attended_, memory_.activations({rows, heads, dim}));
    return {};
  }

  void observe(TensorView taps, const Batch& rows, std::span<const KvLayer> cache) override {
    const int64_t n = rows.rows();
    const TensorView projected = delta_.slice(0, n), feature = normed_.slice(0, n);
    be_.stage(rows);
    be_.linear(projected, taps, *fc_);
    be_.rms_norm(feature, projected, hidden_norm_, eps());
    for (size_t i = 0; i < layers_.size(); ++i) be_.gqa_context(feature, *layers_[i].gqa, cache[i]);
    be_.mark(Phase::kDraft);
  }

  void propose(const Batch& batch, std::span<const KvLayer> cache, const HeadResult& out) override {
    const int64_t n = batch.rows();
    const TensorView x = residual_.slice(0, n), normed = normed_.slice(0, n), delta = delta_.slice(0, n);
    const TensorView q = query_.slice(0, n), attended = attended_.slice(0, n);
    be_.stage(batch);
    be_.embed(x, target_.embedding());
    for (size_t i = 0; i < layers_.size(); ++i) {
      const DflashLayer& layer = layers_[i];
      if (i == 0) {
        be_.rms_norm(normed, x, layer.attn_norm, eps());
      } else {
        be_.add_rms_norm(normed, x, delta, layer.attn_norm, eps());
      }
      be_.gqa_project(q, normed, *layer.gqa, cache[i]);
      be_.attend(attended, q, cache[i], layer.attend);
      be_.gqa_output(delta, attended, *layer.gqa);
      be_.add_rms_norm(normed, x, delta, layer.ffn_norm, eps());
      be_.mlp(delta, normed, *layer.mlp);
    }
    be_.add(x, delta);
    propose_rows_.clear();
    for (const Segment& segment : batch.segments)
      for (int32_t slot = 1; slot < segment.rows; ++slot) propose_rows_.push_back(segment.first_row + slot);
    const int64_t m = static_cast<int64_t>(propose_rows_.size());
    be_.gather_rows(delta_.slice(0, m), x, propose_rows_);
    be_.rms_norm(normed_.slice(0, m), delta_.slice(0, m), norm_, eps());
    be_.head(out, normed_.slice(0, m), target_.lm_head());
    be_.mark(Phase::kDraft);
  }

  int32_t block_size() const override { return static_cast<int32_t>(cfg_.block_size); }
  int32_t slots() const override { return block_size() - 1; }
  int32_t mask_token() const override { return cfg_.mask_token_id; }
  int32_t max_position() const override { return static_cast<int32_t>(cfg_.max_position); }
  int32_t layers() const override { return static_cast<int32_t>(cfg_.num_layers); }
  int32_t kv_width() const override { return static_cast<int32_t>(2 * cfg_.num_kv_heads * cfg_.head_dim); }
  std::span<const int32_t> tap_layers() const override { return taps_; }

 private:
  float eps() const { return static_cast<float>(cfg_.rms_norm_eps); }

  Status prepare_layer(const DrafterLayerSource& source, const DrafterLayerConfig& config) {
    DflashLayer& layer = layers_.emplace_back();
    GqaSource gqa;
    gqa.heads = static_cast<int32_t>(cfg_.num_heads);
    gqa.kv_heads = static_cast<int32_t>(cfg_.num_kv_heads);
    gqa.head_dim = static_cast<int32_t>(cfg_.head_dim);
    gqa.q = source.q;
    gqa.k = source.k;
    gqa.v = source.v;
    gqa.o = source.o;
    gqa.q_norm = source.q_norm;
    gqa.k_norm = source.k_norm;
    gqa.norm_eps = eps();
    gqa.rope = {gqa.head_dim, false, static_cast<float>(cfg_.rope_amplitude), cfg_.inv_freq};
    TRY_ASSIGN(layer.attn_norm, memory_.vector(source.attn_norm));
    TRY_ASSIGN(layer.ffn_norm, memory_.vector(source.ffn_norm));
    TRY_ASSIGN(layer.gqa, be_.prepare(gqa));
    TRY_ASSIGN(layer.mlp, be_.prepare(MlpSource{source.gate, source.up, source.down}));
    layer.attend.mask = config.causal_block ? AttendSpec::Mask::kTree : AttendSpec::Mask::kBlock;
    layer.attend.scale = 1.0f / std::sqrt(static_cast<float>(gqa.head_dim));
    layer.attend.heads = gqa.heads;
    layer.attend.kv_heads = gqa.kv_heads;
    layer.attend.qk_dim = layer.attend.v_dim = gqa.head_dim;
    layer.attend.window = static_cast<int32_t>(config.window);
    return {};
  }

  Backend& be_;
  DrafterConfig cfg_;
  const Decoder& target_;
  std::vector<int32_t> taps_;
  Memory memory_;
  std::unique_ptr<PreparedLinear> fc_;
  TensorView hidden_norm_, norm_;
  std::vector<DflashLayer> layers_;
  TensorView residual_, normed_, delta_, query_, attended_;
  std::vector<int32_t> propose_rows_;
};

}  // namespace

Result<std::unique_ptr<BlockDrafter>> make_dflash_drafter(Backend& backend, const DrafterConfig& config,
                                                          const DrafterSource& source, const Decoder& target,
                                                          const DrafterLimits& limits) {
  auto drafter = std::make_unique<DflashDrafter>(backend, config, target);
  TRY(drafter->prepare(source));
  TRY(drafter->allocate(limits));
  return std::unique_ptr<BlockDrafter>(std::move(drafter));
}

}  // namespace ddtree
