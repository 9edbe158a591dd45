// RefBackend: the oracle. Scalar, single-threaded, float32 activations; every verb computes in double from its float32
// inputs and rounds once when it stores, so that its own error is far below what it judges. One file per topic
// implements the verbs; nothing here is meant to be fast.
#pragma once

#include <initializer_list>
#include <memory>

#include "backend/backend.h"
#include "backend/phase_clock.h"
#include "backend/ref/matrix.h"

namespace ddtree {

std::unique_ptr<Backend> make_ref_backend();

namespace ref {

class RefBackend final : public Backend {
 public:
  std::string_view name() const override { return "ref"; }
  DType activation_dtype() const override { return DType::kF32; }
  DType kv_dtype() const override { return DType::kF32; }

  Result<Buffer> allocate(int64_t bytes, std::string_view what) override;
  Result<std::unique_ptr<PreparedLinear>> prepare(std::span<const Linear> parts) override;
  Result<std::unique_ptr<PreparedMla>> prepare(const MlaSource& source) override;
  Result<std::unique_ptr<PreparedGqa>> prepare(const GqaSource& source) override;
  Result<std::unique_ptr<PreparedMlp>> prepare(const MlpSource& source) override;
  Result<std::unique_ptr<PreparedMoe>> prepare(const MoeSource& source) override;
  Result<Buffer> prepare_vector(TensorView values) override;

  void stage(const Batch& batch) override;
  Status finish() override {
    batch_ = nullptr;
    return {};
  }
  void mark(Phase phase) override { clock_.mark(phase); }
  std::array<double, kPhases> take_phase_ms() override { return clock_.take(); }
  int64_t take_weight_bytes() override { return std::exchange(weight_bytes_, 0); }

  void embed(TensorView out, const PreparedLinear& table) override;
  void rms_norm(TensorView out, TensorView x, TensorView gain, float eps) override;
  void add_rms_norm(TensorView out, TensorView residual, TensorView delta, TensorView gain, float eps) override;
  void add(TensorView residual, TensorView delta) override;
  void gather_rows(TensorView out, TensorView x, std::span<const int32_t> rows) override;
  void linear(TensorView out, TensorView x, const PreparedLinear& w) override;
  void mla_project(TensorView q, TensorView x, const PreparedMla& w, KvLayer cache) override;
  void mla_output(TensorView out, TensorView attended, const PreparedMla& w) override;
  void gqa_project(TensorView q, TensorView x, const PreparedGqa& w, KvLayer cache) override;
  void gqa_context(TensorView x, const PreparedGqa& w, KvLayer cache) override;
  void gqa_output(TensorView out, TensorView attended, const PreparedGqa& w) override;
  void attend(TensorView out, TensorView q, KvLayer cache, const AttendSpec& spec) override;
  void mlp(TensorView out, TensorView x, const PreparedMlp& w) override;
  void moe(TensorView out, TensorView x, const PreparedMoe& w) override;
  void head(const HeadResult& out, TensorView x, const PreparedLinear& w) override;
  void copy_rows(std::span<const KvLayer> caches, std::span<const std::pair<int32_t, int32_t>> rows) override;

 private:
  const Batch& batch() const {
    CHECK(batch_ != nullptr);
    return *batch_;
  }
  void count(const Matrix& w) { weight_bytes_ += w.bytes(); }

  const Batch* batch_ = nullptr;
  int64_t weight_bytes_ = 0;
  PhaseClock clock_;
};

// Float32 of exactly these dimensions, or a CHECK.
void expect(const TensorView& view, std::initializer_list<int64_t> dims);

}  // namespace ref
}  // namespace ddtree
