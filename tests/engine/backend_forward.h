// A backend that hands every call to another: tests override what they want to go wrong.
#pragma once

#include "backend/backend.h"

namespace ddtree {

class BackendForward : public Backend {
 public:
  explicit BackendForward(Backend& to) : to_(to) {}

  std::string_view name() const override { return to_.name(); }
  DType activation_dtype() const override { return to_.activation_dtype(); }
  DType kv_dtype() const override { return to_.kv_dtype(); }
  Result<Buffer> allocate(int64_t bytes, std::string_view what) override { return to_.allocate(bytes, what); }
  Result<std::unique_ptr<PreparedLinear>> prepare(std::span<const Linear> parts) override { return to_.prepare(parts); }
  Result<std::unique_ptr<PreparedMla>> prepare(const MlaSource& source) override { return to_.prepare(source); }
  Result<std::unique_ptr<PreparedGqa>> prepare(const GqaSource& source) override { return to_.prepare(source); }
  Result<std::unique_ptr<PreparedMlp>> prepare(const MlpSource& source) override { return to_.prepare(source); }
  Result<std::unique_ptr<PreparedMoe>> prepare(const MoeSource& source) override { return to_.prepare(source); }
  Result<Buffer> prepare_vector(TensorView values) override { return to_.prepare_vector(values); }
  void stage(const Batch& batch) override { to_.stage(batch); }
  Status finish() override { return to_.finish(); }
  void mark(Phase phase) override { to_.mark(phase); }
  std::array<double, kPhases> take_phase_ms() override { return to_.take_phase_ms(); }
  int64_t take_weight_bytes() override { return to_.take_weight_bytes(); }
  void embed(TensorView out, const PreparedLinear& table) override { to_.embed(out, table); }
  void rms_norm(TensorView out, TensorView x, TensorView gain, float eps) override { to_.rms_norm(out, x, gain, eps); }
  void add_rms_norm(TensorView out, TensorView residual, TensorView delta, TensorView gain, float eps) override {
    to_.add_rms_norm(out, residual, delta, gain, eps);
  }
  void add(TensorView residual, TensorView delta) override { to_.add(residual, delta); }
  void gather_rows(TensorView out, TensorView x, std::span<const int32_t> rows) override {
    to_.gather_rows(out, x, rows);
  }
  void linear(TensorView out, TensorView x, const PreparedLinear& w) override { to_.linear(out, x, w); }
  void mla_project(TensorView q, TensorView x, const PreparedMla& w, KvLayer cache) override {
    to_.mla_project(q, x, w, cache);
  }
  void mla_output(TensorView out, TensorView attended, const PreparedMla& w) override {
    to_.mla_output(out, attended, w);
  }
  void gqa_project(TensorView q, TensorView x, const PreparedGqa& w, KvLayer cache) override {
    to_.gqa_project(q, x, w, cache);
  }
  void gqa_context(TensorView x, const PreparedGqa& w, KvLayer cache) override { to_.gqa_context(x, w, cache); }
  void gqa_output(TensorView out, TensorView attended, const PreparedGqa& w) override {
    to_.gqa_output(out, attended, w);
  }
  void attend(TensorView out, TensorView q, KvLayer cache, const AttendSpec& spec) override {
    to_.attend(out, q, cache, spec);
  }
  void mlp(TensorView out, TensorView x, const PreparedMlp& w) override { to_.mlp(out, x, w); }
  void moe(TensorView out, TensorView x, const PreparedMoe& w) override { to_.moe(out, x, w); }
  void head(const HeadResult& out, TensorView x, const PreparedLinear& w) override { to_.head(out, x, w); }
  void copy_rows(std::span<const KvLayer> caches, std::span<const std::pair<int32_t, int32_t>> rows) override {
    to_.copy_rows(caches, rows);
  }

 private:
  Backend& to_;
};

}  // namespace ddtree
