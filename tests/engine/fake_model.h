// A target and a drafter without weights, for tests of the engine alone. The token after (token, position) is a fixed
// function, so a text is known in advance, whatever the engine does; and the drafter can be told how often to be right,
// and at which rank.
#pragma once

#include <cmath>
#include <vector>

#include "engine/engine_core.h"
#include "model/decoder.h"
#include "model/drafter.h"

namespace ddtree {

inline constexpr int32_t kFakeVocab = 97;
inline constexpr int32_t kPoison = 96;  // the row of this token has NaN logits; fake_next never yields it

inline int32_t fake_next(int32_t token, int32_t position) {
  return static_cast<int32_t>((token * 31u + position * 17u + 7u) % (kFakeVocab - 1));
}

// The `n` tokens after `prompt`.
inline std::vector<int32_t> fake_text(const std::vector<int32_t>& prompt, int n) {
  std::vector<int32_t> text = prompt;
  for (int i = 0; i < n; ++i) text.push_back(fake_next(text.back(), static_cast<int32_t>(text.size()) - 1));
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

struct FakePrepared : PreparedLinear {};

class FakeDecoder final : public Decoder {
 public:
  explicit FakeDecoder(int32_t max_rows) : taps_(max_rows, 0.0f) {}

  void forward(const Batch& batch, std::span<const KvLayer> cache) override {
    batch_ = &batch;
    for (int32_t row = 0; row < batch.rows(); ++row) {  // what a row leaves in the cache: its token and position
      *cache[0].row<float>(batch.kv_row[row]) = static_cast<float>(batch.token[row] + kFakeVocab * batch.position[row]);
      taps_[row] = static_cast<float>(batch.position[row]);
    }
    check_context(cache[0]);
  }

  void head(const HeadResult& out, std::span<const int32_t> rows) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      const int32_t token = batch_->token[rows[i]], next = fake_next(token, batch_->position[rows[i]]);
      const float best = token == kPoison || batch_->position[rows[i]] == poison_ ? NAN : 5.0f;
      out.top_value.row<float>(i)[0] = best;
      out.top_value.row<float>(i)[1] = 0;
      out.top_id.row<int32_t>(i)[0] = next;
      out.top_id.row<int32_t>(i)[1] = next == 0 ? 1 : 0;
      out.lse.as<float>()[i] = best;
      if (out.logits.empty()) continue;
      for (int32_t v = 0; v < kFakeVocab; ++v) out.logits.row<float>(i)[v] = v == next ? best : 0.0f;
    }
  }

  void poison_position(int32_t position) { poison_ = position; }  // rows there have NaN logits

  TensorView taps() const override {
    return TensorView(const_cast<float*>(taps_.data()), DType::kF32, {static_cast<int64_t>(taps_.size()), 1});
  }
  int32_t layers() const override { return 1; }
  int32_t kv_width() const override { return 1; }
  int32_t vocab_size() const override { return kFakeVocab; }
  int32_t hidden_size() const override { return 1; }
  const PreparedLinear& embedding() const override { return nothing_; }
  const PreparedLinear& lm_head() const override { return nothing_; }

 private:
  // Every committed row that a segment will read holds its own position, and the token that led to the next row's.
  void check_context(KvLayer cache) const {
    for (const Segment& segment : batch_->segments) {
      for (int32_t p = 0; p < segment.context; ++p) {
        const int32_t held = static_cast<int32_t>(*cache.row<float>(KvCache::page_row(segment.pages, p)));
        CHECK_EQ(held / kFakeVocab, p);
      }
    }
  }

  const Batch* batch_ = nullptr;
  int32_t poison_ = -1;
  std::vector<float> taps_;
  FakePrepared nothing_;
};

// Proposes, in every slot, the true token at rank `rank(position)` among decoys: a rank above 0 forces an acceptance
// off the spine.
class FakeDrafter final : public BlockDrafter {
 public:
  explicit FakeDrafter(int32_t block, int32_t max_position, int32_t ranks)
      : block_(block), max_position_(max_position), ranks_(ranks) {}

  void observe(TensorView taps, const Batch& rows, std::span<const KvLayer> cache) override {
    CHECK_EQ(taps.rows(), rows.rows());
    for (int32_t row = 0; row < rows.rows(); ++row) {
      CHECK_EQ(*taps.row<float>(row), static_cast<float>(rows.position[row]));
      *cache[0].row<float>(rows.kv_row[row]) = static_cast<float>(rows.position[row]);
    }
  }

  void propose(const Batch& batch, std::span<const KvLayer> cache, const HeadResult& out) override {
    for (size_t s = 0; s < batch.segments.size(); ++s) {
      const Segment& segment = batch.segments[s];
      for (int32_t p = 0; p < segment.context; ++p)  // every committed row has been observed, where it belongs
        CHECK_EQ(*cache[0].row<float>(KvCache::page_row(segment.pages, p)), static_cast<float>(p));
      int32_t token = batch.token[segment.first_row];
      for (int32_t slot = 0; slot < slots(); ++slot) {
        const int32_t position = segment.context + slot;
        token = fake_next(token, position);
        fill(out, static_cast<int64_t>(s) * slots() + slot, token, position % ranks_);
      }
    }
  }

  int32_t block_size() const override { return block_; }
  int32_t slots() const override { return block_ - 1; }
  int32_t mask_token() const override { return 0; }
  int32_t max_position() const override { return max_position_; }
  int32_t layers() const override { return 1; }
  int32_t kv_width() const override { return 1; }
  std::span<const int32_t> tap_layers() const override { return taps_; }

 private:
  static void fill(const HeadResult& out, int64_t row, int32_t token, int32_t rank) {
    const int64_t k = out.top_id.dim[1];
    for (int64_t r = 0; r < k; ++r) {
      out.top_value.row<float>(row)[r] = -1.0f * static_cast<float>(r);
      out.top_id.row<int32_t>(row)[r] = static_cast<int32_t>((token + 1 + r) % kFakeVocab);
    }
    std::swap(out.top_id.row<int32_t>(row)[rank], out.top_id.row<int32_t>(row)[k - 1]);
    out.top_id.row<int32_t>(row)[rank] = token;
    out.lse.as<float>()[row] = 0.5f;
  }

  int32_t block_, max_position_, ranks_;
  std::vector<int32_t> taps_ = {0};
};

}  // namespace ddtree
