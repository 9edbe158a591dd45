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
    const GemmJob down = {&w.down, {hidden, w.inter, nullptr}, rows_of(out), x.rows()};
    runner_.run(
        multiply_adds({&gate_up, 1}),
        [&](Part part) {
          runner_.gate_up({&gate_up, 1}, part);
        },
        [&](Part part) {
          runner_.linear({&down, 1}, part);
        });
    weight_bytes_ += w.bytes();
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
    const GemmJob job = {&w, x, y, rows};
    runner_.run(multiply_adds({&job, 1}), [&](Part part) { runner_.linear({&job, 1}, part); });
    weight_bytes_ += w.bytes();
  }
  void write_key(const CpuMla& w, int64_t row, const float* latent, float* key);
  void copy_rotated(const CpuMla& w, int64_t row, const float* x, float* out);
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
  for (int32_t row : batch_->kv_row) CHECK(row >= 0 && row < cache.rows());
  ropes_.prepare(w.rope);
  const int64_t width = w.in.out;
  const Rows projected = {projected_.grow(rows * width), width, nullptr};
  const GemmJob in = {&w.in, rows_of(x), projected, rows};
  Rows queries = projected;
  GemmJob q_b;
  if (w.q_rank != 0) {
    queries = {queries_.grow(rows * w.query_width()), w.query_width(), nullptr};
    q_b = {&w.q_b, projected, queries, rows, 0, w.q_a_norm.data(), w.eps};
    weight_bytes_ += w.q_b.bytes();
  }
  jobs_.clear();
  for (int64_t h = 0; h < w.heads; ++h) {
    const Matrix& up = w.key_up[static_cast<size_t>(h)];
    jobs_.push_back(
        {&up, {queries.base + h * head_width, queries.stride, nullptr}, rows_of(q, h * w.key_width()), rows});
    weight_bytes_ += up.bytes();
  }
  weight_bytes_ += w.in.bytes();

  // Per row one latent key and the heads' queries to rotate.
  const int64_t parts = rows * (1 + w.heads);
  const auto rotate = [&](Part part) {
    for (int64_t i = part.begin(parts); i < part.end(parts); ++i) {
      const int64_t r = i / (1 + w.heads), h = i % (1 + w.heads) - 1;
      if (h < 0)
        write_key(w, r, projected[r] + width - w.key_width(), cache.row<float>(batch_->kv_row[static_cast<size_t>(r)]));
      else
        copy_rotated(w, r, queries[r] + h * head_width + w.nope, q.row<float>(r) + h * w.key_width() + w.kv_lora);
    }
  };
  runner_.run(
      multiply_adds({&in, 1}),
      [&](Part part) {
        runner_.linear({&in, 1}, part);
      },
      [&](Part part) {
        if (w.q_rank != 0) runner_.linear({&q_b, 1}, part);
      },
      [&](Part part) {
        rotate(part);
        runner_.linear(jobs_, part);
      });
}

void CpuBackend::write_key(const CpuMla& w, int64_t row, const float* latent, float* key) {
  kernels_.rms_norm(key, latent, w.kv_a_norm.data(), w.kv_lora, w.eps);
  copy_rotated(w, row, latent + w.kv_lora, key + w.kv_lora);
}

void CpuBackend::copy_rotated(const CpuMla& w, int64_t row, const float* x, float* out) {
  std::copy_n(x, w.rope_dim, out);
  ropes_.rotate(w.rope, row, out);
}

void CpuBackend::mla_output(TensorView out, TensorView attended, const PreparedMla& prepared) {
  const auto& w = static_cast<const CpuMla&>(prepared);
  const int64_t rows = attended.rows();
  const Rows values = {values_.grow(rows * w.heads * w.v), w.heads * w.v, nullptr};
  jobs_.clear();
  for (int64_t h = 0; h < w.heads; ++h) {
    const Matrix& up = w.value_up[static_cast<size_t>(h)];
    jobs_.push_back({&up, rows_of(attended, h * w.kv_lora), {values.base + h * w.v, values.stride, nullptr}, rows});
    weight_bytes_ += up.bytes();
  }
  const GemmJob o = {&w.o, values, rows_of(out), rows};
  weight_bytes_ += w.o.bytes();
  runner_.run(
      multiply_adds(jobs_), [&](Part part) { runner_.linear(jobs_, part); },
      [&](Part part) {
        runner_.linear({&o, 1}, part);
      });
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
