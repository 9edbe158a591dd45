#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/cpu/attention.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/head.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/moe.h"
#include "backend/cpu/prepared.h"
#include "backend/phase_clock.h"
#include "backend/source_check.h"

namespace ddtree {
namespace cpu {
namespace {

Rows rows_of(TensorView view, int64_t column = 0) { return {view.as<float>() + column, view.row_stride, nullptr}; }

class CpuBackend final : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, std::unique_ptr<ThreadPool> pool)
      : kernels_(kernels),
        name_(fmt::format("cpu ({})", kernels.name)),
        pool_(std::move(pool)),
        runner_(kernels, *pool_),
        attention_(runner_),
        moe_(runner_),
        head_(runner_) {}

  std::string_view name() const override { return name_; }
  DType activation_dtype() const override { return DType::kF32; }
  DType kv_dtype() const override { return DType::kF32; }

  Result<Buffer> allocate(int64_t bytes, std::string_view what) override {
    Buffer buffer = bytes < 0 ? Buffer() : allocate_host(bytes);
    if (buffer.data() == nullptr)
      return Error{Code::kExhausted, fmt::format("out of memory: {} bytes for {}", bytes, what)};
    return buffer;
  }

  Result<std::unique_ptr<PreparedLinear>> prepare(std::span<const Linear> parts) override {
    TRY(check_source(parts));
    return prepare_linear(parts, arena_);
  }
  Result<std::unique_ptr<PreparedMla>> prepare(const MlaSource& source) override {
    TRY(check_source(source));
    return prepare_mla(source, arena_, ropes_);
  }
  Result<std::unique_ptr<PreparedGqa>> prepare(const GqaSource& source) override {
    TRY(check_source(source));
    return prepare_gqa(source, arena_, ropes_);
  }
  Result<std::unique_ptr<PreparedMlp>> prepare(const MlpSource& source) override {
    TRY(check_source(source));
    return prepare_mlp(source, arena_);
  }
  Result<std::unique_ptr<PreparedMoe>> prepare(const MoeSource& source) override {
    TRY(check_source(source));
    return prepare_moe(source, arena_);
  }
  Result<Buffer> prepare_vector(TensorView values) override {
    TRY(check_vector(values, "vector"));
    const std::vector<float> f32 = to_f32(values);
    const auto bytes = static_cast<int64_t>(f32.size() * sizeof(float));
    TRY_ASSIGN(Buffer buffer, allocate(bytes, "vector"));
    std::memcpy(buffer.data(), f32.data(), static_cast<size_t>(bytes));
    return buffer;
  }

  void stage(const Batch& batch) override {
    batch_ = &batch;
    ropes_.stage(batch.position);
    attention_.stage();
  }
  Status finish() override { return {}; }
  void mark(Phase phase) override { clock_.mark(phase); }
  std::array<double, kPhases> take_phase_ms() override { return clock_.take(); }
  int64_t take_weight_bytes() override { return std::exchange(weight_bytes_, 0); }

  void embed(TensorView out, const PreparedLinear& table) override {
    const Matrix& w = static_cast<const CpuLinear&>(table).w;
    CHECK_EQ(out.row_elements(), w.in);
    CHECK_EQ(out.rows(), batch_->rows());
    runner_.ranges(out.rows(), out.elements() * kGatherWork, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int32_t token = batch_->token[static_cast<size_t>(r)];
        CHECK(token >= 0 && token < w.out);
        unpack_row(w, token, out.row<float>(r));
      }
    });
    weight_bytes_ += w.bytes() / w.out * out.rows();
  }

  void rms_norm(TensorView out, TensorView x, TensorView gain, float eps) override {
    CHECK_EQ(gain.elements(), x.row_elements());
    runner_.ranges(x.rows(), x.elements() * kNormWork, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        kernels_.rms_norm(out.row<float>(r), x.row<float>(r), gain.as<float>(), x.row_elements(), eps);
    });
  }
  void add_rms_norm(TensorView out, TensorView residual, TensorView delta, TensorView gain, float eps) override {
    CHECK_EQ(gain.elements(), residual.row_elements());
    runner_.ranges(residual.rows(), residual.elements() * kNormWork, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        kernels_.add(residual.row<float>(r), delta.row<float>(r), residual.row_elements());
        kernels_.rms_norm(out.row<float>(r), residual.row<float>(r), gain.as<float>(), residual.row_elements(), eps);
      }
    });
  }
  void add(TensorView residual, TensorView delta) override {
    runner_.ranges(residual.rows(), residual.elements() * kAddWork, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        kernels_.add(residual.row<float>(r), delta.row<float>(r), residual.row_elements());
    });
  }
  void gather_rows(TensorView out, TensorView x, std::span<const int32_t> rows) override {
    for (size_t i = 0; i < rows.size(); ++i)
      std::memcpy(out.row<float>(static_cast<int64_t>(i)), x.slice(rows[i], 1).data,
                  static_cast<size_t>(x.row_elements()) * sizeof(float));
  }

  void linear(TensorView out, TensorView x, const PreparedLinear& w) override {
    run(static_cast<const CpuLinear&>(w).w, rows_of(x), rows_of(out), x.rows());
  }

  void mla_project(TensorView q, TensorView x, const PreparedMla& prepared, KvLayer cache) override;
  void mla_output(TensorView out, TensorView attended, const PreparedMla& prepared) override;
  void gqa_project(TensorView q, TensorView x, const PreparedGqa& prepared, KvLayer cache) override;
  void gqa_context(TensorView x, const PreparedGqa& prepared, KvLayer cache) override;
  void gqa_output(TensorView out, TensorView attended, const PreparedGqa& prepared) override {
    run(static_cast<const CpuGqa&>(prepared).o, rows_of(attended), rows_of(out), attended.rows());
  }
  void attend(TensorView out, TensorView q, KvLayer cache, const AttendSpec& spec) override {
    attention_.run(*batch_, out, q, cache, spec);
  }

  void mlp(TensorView out, TensorView x, const PreparedMlp& prepared) override {
    const Mlp& w = static_cast<const CpuMlp&>(prepared).mlp;
    float* hidden = values_.grow(x.rows() * w.inter);
    const GemmJob gate_up = {&w.gate_up, rows_of(x), {hidden, w.inter, nullptr}, x.rows(), w.inter};
    runner_.gate_up({&gate_up, 1});
    weight_bytes_ += w.gate_up.bytes();
    run(w.down, {hidden, w.inter, nullptr}, rows_of(out), x.rows());
  }
  void moe(TensorView out, TensorView x, const PreparedMoe& w) override {
    weight_bytes_ += moe_.run(out, x, static_cast<const CpuMoe&>(w));
  }
  void head(const HeadResult& out, TensorView x, const PreparedLinear& prepared) override {
    const Matrix& w = static_cast<const CpuLinear&>(prepared).w;
    head_.run(out, x, w);
    weight_bytes_ += w.bytes();
  }

  void copy_rows(std::span<const KvLayer> caches, std::span<const std::pair<int32_t, int32_t>> rows) override;

 private:
  // What a value costs in multiply-adds of a gemm, roughly: added, normalised, rotated, or read out of a packed matrix.
  static constexpr int64_t kAddWork = 2, kNormWork = 8, kRopeWork = 32, kGatherWork = 128;

  void run(const Matrix& w, Rows x, Rows y, int64_t rows) {
    const GemmJob job = {&w, x, y, rows, 0};
    runner_.linear({&job, 1});
    weight_bytes_ += w.bytes();
  }
  void project_keys(TensorView q, const float* projected, int64_t width, const CpuMla& w, KvLayer cache);
  void norm_and_rotate(const CpuGqa& w, const std::vector<float>& gain, int64_t heads, int64_t row, float* x);

  const KernelTable& kernels_;
  const std::string name_;
  const std::unique_ptr<ThreadPool> pool_;
  GemmRunner runner_;
  WeightArena arena_;
  RopeTables ropes_;
  Attention attention_;
  Moe moe_;
  Head head_;
  const Batch* batch_ = nullptr;
  int64_t weight_bytes_ = 0;
  PhaseClock clock_;
  Scratch<float> projected_, queries_, values_;
  std::vector<GemmJob> jobs_;
};

void CpuBackend::mla_project(TensorView q, TensorView x, const PreparedMla& prepared, KvLayer cache) {
  const auto& w = static_cast<const CpuMla&>(prepared);
  const int64_t rows = x.rows(), head_width = w.nope + w.rope_dim;
  CHECK_EQ(rows, batch_->rows());
  CHECK_EQ(cache.row_elements(), w.key_width());
  ropes_.prepare(w.rope);
  const int64_t width = w.in.out;
  float* projected = projected_.grow(rows * width);
  run(w.in, rows_of(x), {projected, width, nullptr}, rows);

  // Latent keys to the cache; the low-rank query normalised in place.
  const int64_t latent_at = width - w.key_width();
  runner_.ranges(rows, rows * (width * kNormWork + w.rope_dim * kRopeWork), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = projected + r * width;
      float* key = cache.slice(batch_->kv_row[static_cast<size_t>(r)], 1).as<float>();
      kernels_.rms_norm(key, row + latent_at, w.kv_a_norm.data(), w.kv_lora, w.eps);
      std::copy_n(row + latent_at + w.kv_lora, w.rope_dim, key + w.kv_lora);
      ropes_.rotate(w.rope, r, key + w.kv_lora);
      if (w.q_rank != 0) kernels_.rms_norm(row, row, w.q_a_norm.data(), w.q_rank, w.eps);
    }
  });

  float* queries = projected;
  int64_t query_stride = width;
  if (w.q_rank != 0) {
    query_stride = w.query_width();
    queries = queries_.grow(rows * query_stride);
    run(w.q_b, {projected, width, nullptr}, {queries, query_stride, nullptr}, rows);
  }

  runner_.ranges(rows, rows * w.heads * w.rope_dim * kRopeWork, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t h = 0; h < w.heads; ++h) {
        float* rotated = q.row<float>(r) + h * w.key_width() + w.kv_lora;
        std::copy_n(queries + r * query_stride + h * head_width + w.nope, w.rope_dim, rotated);
        ropes_.rotate(w.rope, r, rotated);
      }
  });
  jobs_.clear();
  for (int64_t h = 0; h < w.heads; ++h) {
    jobs_.push_back({&w.key_up[static_cast<size_t>(h)],
                     {queries + h * head_width, query_stride, nullptr},
                     rows_of(q, h * w.key_width()),
                     rows,
                     0});
    weight_bytes_ += w.key_up[static_cast<size_t>(h)].bytes();
  }
  runner_.linear(jobs_);
}

void CpuBackend::mla_output(TensorView out, TensorView attended, const PreparedMla& prepared) {
  const auto& w = static_cast<const CpuMla&>(prepared);
  const int64_t rows = attended.rows(), width = w.heads * w.v;
  float* values = values_.grow(rows * width);
  jobs_.clear();
  for (int64_t h = 0; h < w.heads; ++h) {
    jobs_.push_back({&w.value_up[static_cast<size_t>(h)],
                     rows_of(attended, h * w.kv_lora),
                     {values + h * w.v, width, nullptr},
                     rows,
                     0});
    weight_bytes_ += w.value_up[static_cast<size_t>(h)].bytes();
  }
  runner_.linear(jobs_);
  run(w.o, {values, width, nullptr}, rows_of(out), rows);
}

void CpuBackend::norm_and_rotate(const CpuGqa& w, const std::vector<float>& gain, int64_t heads, int64_t row,
                                 float* x) {
  for (int64_t h = 0; h < heads; ++h, x += w.head_dim) {
    if (!gain.empty()) kernels_.rms_norm(x, x, gain.data(), w.head_dim, w.eps);
    ropes_.rotate(w.rope, row, x);
  }
}

void CpuBackend::gqa_project(TensorView q, TensorView x, const PreparedGqa& prepared, KvLayer cache) {
  const auto& w = static_cast<const CpuGqa&>(prepared);
  gqa_context(x, prepared, cache);
  run(w.q, rows_of(x), rows_of(q), x.rows());
  runner_.ranges(x.rows(), x.rows() * w.heads * w.head_dim * kRopeWork, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) norm_and_rotate(w, w.q_norm, w.heads, r, q.row<float>(r));
  });
}

void CpuBackend::gqa_context(TensorView x, const PreparedGqa& prepared, KvLayer cache) {
  const auto& w = static_cast<const CpuGqa&>(prepared);
  CHECK_EQ(x.rows(), batch_->rows());
  CHECK_EQ(cache.row_elements(), w.kv.out);
  for (int32_t row : batch_->kv_row) CHECK(row >= 0 && row < cache.rows());
  ropes_.prepare(w.rope);
  run(w.kv, rows_of(x), {cache.as<float>(), cache.row_stride, batch_->kv_row.data()}, x.rows());
  runner_.ranges(x.rows(), x.rows() * w.kv_heads * w.head_dim * kRopeWork, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      norm_and_rotate(w, w.k_norm, w.kv_heads, r, cache.row<float>(batch_->kv_row[static_cast<size_t>(r)]));
  });
}

void CpuBackend::copy_rows(std::span<const KvLayer> caches, std::span<const std::pair<int32_t, int32_t>> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  for (const KvLayer& cache : caches) {
    const int64_t width = cache.row_elements();
    const size_t bytes = static_cast<size_t>(width) * sizeof(float);
    float* saved = values_.grow(count * width);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(saved + i * width, cache.slice(rows[static_cast<size_t>(i)].first, 1).data, bytes);
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(cache.slice(rows[static_cast<size_t>(i)].second, 1).data, saved + i * width, bytes);
  }
}

}  // namespace
}  // namespace cpu

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options) {
  TRY_ASSIGN(const cpu::KernelTable* kernels, cpu::select_kernels(options.isa));
  TRY_ASSIGN(std::unique_ptr<ThreadPool> pool, ThreadPool::create(options.threads));
  return std::unique_ptr<Backend>(std::make_unique<cpu::CpuBackend>(*kernels, std::move(pool)));
}

}  // namespace ddtree
