// The forward pass of DeepSeek-V2/V3, Moonlight and Kimi-K2 (arXiv 2405.04434, 2412.19437), written once for every
// backend.

#include <numeric>
#include <utility>

#include "model/decoder.h"
#include "model/deepseek_weights.h"

namespace ddtree {
namespace {

class DeepseekDecoder final : public Decoder {
 public:
  DeepseekDecoder(Backend& backend, const ModelConfig& config, DecoderOptions options, DeepseekWeights weights)
      : be_(backend), cfg_(config), options_(std::move(options)), w_(std::move(weights)), memory_(backend) {
    attend_.scale = static_cast<float>(cfg_.softmax_scale);
    attend_.heads = static_cast<int32_t>(cfg_.num_heads);
    attend_.qk_dim = kv_width();
    attend_.v_dim = static_cast<int32_t>(cfg_.kv_lora_rank);
  }

  // Activation memory for options_.max_rows rows, taken once.
  Status allocate() {
    const int64_t rows = options_.max_rows, hidden = cfg_.hidden_size, heads = cfg_.num_heads;
    const int64_t taps = static_cast<int64_t>(options_.tap_layers.size());
    TRY_ASSIGN(residual_, memory_.activations({rows, hidden}));
    TRY_ASSIGN(normed_, memory_.activations({rows, hidden}));
    TRY_ASSIGN(delta_, memory_.activations({rows, hidden}));
    TRY_ASSIGN(query_, memory_.activations({rows, heads, kv_width()}));
    TRY_ASSIGN(attended_, memory_.activations({rows, heads, cfg_.kv_lora_rank}));
    TRY_ASSIGN(taps_, memory_.activations({rows, taps * hidden}));
    all_rows_.resize(rows);
    std::iota(all_rows_.begin(), all_rows_.end(), 0);
    return {};
  }

  void forward(const Batch& batch, std::span<const KvLayer> cache) override {
    rows_ = batch.rows();
    CHECK_LE(rows_, options_.max_rows);
    CHECK_EQ(static_cast<int64_t>(cache.size()), cfg_.num_layers);
    const float eps = static_cast<float>(cfg_.rms_norm_eps);
    const TensorView x = now(residual_), normed = now(normed_), delta = now(delta_);
    const TensorView q = now(query_), attended = now(attended_);

    be_.stage(batch);
    be_.embed(x, *w_.embed);
    be_.mark(Phase::kEmbed);
    for (int64_t i = 0; i < cfg_.num_layers; ++i) {
      const DeepseekLayer& layer = w_.layers[i];
      if (i == 0) {
        be_.rms_norm(normed, x, layer.attn_norm, eps);
      } else {
        be_.add_rms_norm(normed, x, delta, layer.attn_norm, eps);
        keep_tap(i - 1);
      }
      be_.mla_project(q, normed, *layer.mla, cache[i]);
      be_.attend(attended, q, cache[i], attend_);
      be_.mla_output(delta, attended, *layer.mla);
      be_.add_rms_norm(normed, x, delta, layer.ffn_norm, eps);
      be_.mark(Phase::kAttention);
      if (layer.moe) {
        be_.moe(delta, normed, *layer.moe);
        be_.mark(Phase::kExperts);
      } else {
        be_.mlp(delta, normed, *layer.mlp);
        be_.mark(Phase::kDense);
      }
    }
    be_.add(x, delta);
    keep_tap(cfg_.num_layers - 1);
    be_.mark(Phase::kDense);
  }

  void head(const HeadResult& out, std::span<const int32_t> rows) override {
    if (rows.empty()) return;
    const int64_t n = static_cast<int64_t>(rows.size());
    const TensorView gathered = delta_.slice(0, n), normed = normed_.slice(0, n);  // free again after forward
    be_.gather_rows(gathered, now(residual_), rows);
    be_.rms_norm(normed, gathered, w_.norm, static_cast<float>(cfg_.rms_norm_eps));
    be_.head(out, normed, lm_head());
    be_.mark(Phase::kHead);
  }

  TensorView taps() const override { return taps_.slice(0, rows_); }
  int32_t layers() const override { return static_cast<int32_t>(cfg_.num_layers); }
  int32_t kv_width() const override { return static_cast<int32_t>(cfg_.kv_row_width()); }
  int32_t vocab_size() const override { return static_cast<int32_t>(cfg_.vocab_size); }
  int32_t hidden_size() const override { return static_cast<int32_t>(cfg_.hidden_size); }
  const PreparedLinear& embedding() const override { return *w_.embed; }
  const PreparedLinear& lm_head() const override { return w_.head ? *w_.head : *w_.embed; }

 private:
  TensorView now(const TensorView& full) const { return full.slice(0, rows_); }

  void keep_tap(int64_t layer) {
    const int64_t hidden = cfg_.hidden_size;
    for (size_t t = 0; t < options_.tap_layers.size(); ++t) {
      if (options_.tap_layers[t] != layer) continue;
      TensorView column(static_cast<char*>(taps_.data) + t * hidden * dtype_size(taps_.dtype), taps_.dtype,
                        {rows_, hidden});
      column.row_stride = taps_.row_stride;
      be_.gather_rows(column, now(residual_), std::span(all_rows_).first(rows_));
    }
  }

  Backend& be_;
  ModelConfig cfg_;
  DecoderOptions options_;
  DeepseekWeights w_;
  AttendSpec attend_;
  Memory memory_;
  TensorView residual_, normed_, delta_, query_, attended_, taps_;
  std::vector<int32_t> all_rows_;
  int64_t rows_ = 0;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_deepseek_decoder(Backend& backend, const ModelConfig& config,
                                                       const DeepseekSource& source, const DecoderOptions& options) {
  for (int32_t layer : options.tap_layers)
    if (layer < 0 || layer >= config.num_layers)
      return Error{Code::kInvalidArgument, "target_layer_ids: layer " + std::to_string(layer) + " is not in 0 … " +
                                               std::to_string(config.num_layers - 1) + ", the target's layers"};
  TRY_ASSIGN(DeepseekWeights weights, prepare_deepseek(backend, config, source, options.progress));
  auto decoder = std::make_unique<DeepseekDecoder>(backend, config, options, std::move(weights));
  TRY(decoder->allocate());
  return std::unique_ptr<Decoder>(std::move(decoder));
}

}  // namespace ddtree
