// The `dense` verb of op_bench: the dense products of one layer, each with what belongs behind it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/gemm/mla.h"
#include "backend/cuda/gemm/mlp.h"
#include "base/bf16.h"
#include "op_bench/verb.h"
#include "support/gpu_timing.h"
#include "support/random_dense.h"

namespace ddtree::cuda {
namespace {

constexpr int64_t kColdBytes = 512 << 20;  // of copies that a graph walks through: none of them is warm
constexpr double kMaxError = 3e-3;         // one rounding to bf16, 1.7e-3 of the norm
constexpr double kMaxMlpError = 5e-3;      // two

struct Product {
  const char* name;
  GemmShape shape;
  int32_t inter = 0;  // > 0: a whole mlp of this width, shape is its gate_up
};

std::vector<Product> products(const PresetShape& s) {
  const int32_t query = s.nope_dim + s.rope_dim;
  return {{"q_a+kv_a", {1, s.q_lora + s.kv_lora + s.rope_dim, s.hidden}},
          {"q_b", {s.heads, query, s.q_lora}},
          {"absorb_k", {s.heads, s.kv_lora, s.nope_dim}},
          {"absorb_v", {s.heads, s.v_dim, s.kv_lora}},
          {"o_proj", {1, s.hidden, s.heads * s.v_dim}},
          {"shared_mlp", {1, 2 * s.shared_inter, s.hidden}, s.shared_inter},
          {"dense_mlp", {1, 2 * s.dense_inter, s.hidden}, s.dense_inter}};
}

// One product with enough copies of its weights.
struct Problem {
  std::vector<Buffer> weights, down;
  std::vector<uint16_t> x_host;
  Buffer x, out, workspace;
  int64_t x_width = 0, out_width = 0;
};

Result<Problem> make_problem(const Product& p, int32_t max_rows, uint64_t seed, cudaStream_t stream) {
  Problem problem;
  const MlpShape mlp{p.shape.in, p.inter};
  const int64_t bytes = gemm_bytes(p.shape) + (p.inter > 0 ? gemm_bytes(mlp_down(mlp)) : 0);
  const auto copies = static_cast<int>(std::clamp<int64_t>(kColdBytes / bytes, 2, 64));
  for (int i = 0; i < copies; ++i) {
    TRY_ASSIGN(Buffer weights, random_gemm_weights(p.shape, seed + static_cast<uint64_t>(i), stream));
    problem.weights.push_back(std::move(weights));
    if (p.inter == 0) continue;
    TRY_ASSIGN(Buffer down, random_gemm_weights(mlp_down(mlp), seed + 1000 + static_cast<uint64_t>(i), stream));
    problem.down.push_back(std::move(down));
  }
  problem.x_width = static_cast<int64_t>(p.shape.groups) * p.shape.in;
  problem.out_width = p.inter > 0 ? p.shape.in : static_cast<int64_t>(p.shape.groups) * p.shape.rows;
  problem.x_host = random_host_matrix(max_rows, problem.x_width, seed + 7);
  TRY_ASSIGN(problem.x, random_matrix(max_rows, problem.x_width, seed + 7, stream));
  TRY_ASSIGN(problem.out, allocate_device(max_rows * problem.out_width * 2, "outputs"));
  const int64_t work = p.inter > 0 ? mlp_workspace_bytes(mlp, max_rows) : gemm_workspace_bytes(p.shape, max_rows);
  TRY_ASSIGN(problem.workspace, allocate_device(work, "workspace"));
  TRY(init_gemm_workspace(problem.workspace.data(), stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "packing"));
  return problem;
}

Status run_product(const Product& p, const Problem& problem, const Gpu& gpu, int32_t rows, int i, cudaStream_t stream) {
  const size_t copy = static_cast<size_t>(i) % problem.weights.size();
  if (p.inter > 0)
    return run_mlp({p.shape.in, p.inter}, gpu,
                   {problem.weights[copy].data(), problem.down[copy].data(), problem.x.data(), problem.out.data(), rows,
                    problem.workspace.data()},
                   stream);
  GemmArgs args;
  args.x = problem.x.data();
  args.x_stride = problem.x_width;
  args.x_group = p.shape.in;
  args.rows = rows;
  args.out = {.data = problem.out.data(), .row_stride = problem.out_width, .group_stride = p.shape.rows};
  args.workspace = problem.workspace.data();
  return run_gemm({p.shape, problem.weights[copy].data()}, gpu, args, stream);
}

// Some outputs of one row, in double.
std::vector<double> reference(const Product& p, uint64_t seed, std::span<const float> x,
                              const std::vector<int32_t>& outputs) {
  std::vector<double> want;
  if (p.inter == 0) {
    for (const int32_t o : outputs) {
      const int32_t group = o / p.shape.rows;
      want.push_back(random_gemm_output(
          p.shape, seed, group, o % p.shape.rows,
          x.subspan(static_cast<size_t>(group) * static_cast<size_t>(p.shape.in), static_cast<size_t>(p.shape.in))));
    }
    return want;
  }
  std::vector<float> inner;
  for (int32_t i = 0; i < p.inter; ++i) {
    const double gate = random_gemm_output(p.shape, seed, 0, 2 * i, x);
    const double up = random_gemm_output(p.shape, seed, 0, 2 * i + 1, x);
    inner.push_back(static_cast<float>(gate / (1 + std::exp(-gate)) * up));
  }
  const GemmShape down = mlp_down({p.shape.in, p.inter});
  for (const int32_t o : outputs) want.push_back(random_gemm_output(down, seed + 1000, 0, o, inner));
  return want;
}

Result<double> check(const Product& p, const Problem& problem, const Gpu& gpu, int32_t rows, uint64_t seed,
                     cudaStream_t stream) {
  TRY(cuda_status(cudaMemset(problem.out.data(), 0xff, static_cast<size_t>(problem.out.bytes())), "poisoning"));
  TRY(run_product(p, problem, gpu, rows, 0, stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), p.name));
  std::vector<uint16_t> out(static_cast<size_t>(rows * problem.out_width));
  TRY(cuda_status(cudaMemcpy(out.data(), problem.out.data(), out.size() * 2, cudaMemcpyDeviceToHost), "download"));
  const int32_t row = rows / 2;
  std::vector<float> x(static_cast<size_t>(problem.x_width));
  for (size_t i = 0; i < x.size(); ++i) x[i] = bf16_to_f32(problem.x_host[static_cast<size_t>(row) * x.size() + i]);
  std::vector<int32_t> outputs;
  for (int32_t i = 0; i < 64; ++i) outputs.push_back(static_cast<int32_t>(i * int64_t{7919} % problem.out_width));
  const std::vector<double> want = reference(p, seed, x, outputs);
  double error = 0, norm = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const double got = static_cast<double>(
        bf16_to_f32(out[static_cast<size_t>(row * problem.out_width) + static_cast<size_t>(outputs[i])]));
    if (!std::isfinite(got)) return std::numeric_limits<double>::infinity();
    error += (got - want[i]) * (got - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

Status bench_product(const BenchOptions& options, const BenchDevice& device, const Gpu& gpu, const Product& p,
                     const std::vector<int32_t>& row_counts, JsonWriter& out) {
  const int32_t max_rows = *std::max_element(row_counts.begin(), row_counts.end());
  TRY_ASSIGN(const Problem problem, make_problem(p, max_rows, options.seed, device.stream));
  const double bytes =
      static_cast<double>(gemm_bytes(p.shape) + (p.inter > 0 ? gemm_bytes(mlp_down({p.shape.in, p.inter})) : 0));
  for (const int32_t rows : row_counts) {
    TRY_ASSIGN(const double error, check(p, problem, gpu, rows, options.seed, device.stream));
    const auto body = [&](int i, cudaStream_t s) { return run_product(p, problem, gpu, rows, i, s); };
    const double guess = 3 + bytes * (1 + rows / 64) / 4e6;  // microseconds
    const int repetitions = std::clamp(static_cast<int>(3000 / guess), 2, static_cast<int>(problem.weights.size()));
    TRY_ASSIGN(const double us, time_burst(body, repetitions, options.samples, device.stream));
    const double floor = bytes / device.read_ceiling_gbps / 1e3, flops = bytes * rows;
    std::printf("%-11s %5d | %8.1f %8.1f | %6.0f %6.1f | %7.1f %9.2e\n", p.name, rows, bytes / 1e6, us,
                bytes / us / 1e3, 100 * floor / us, flops / us / 1e6, error);
    std::fflush(stdout);
    out.begin_object().member("product", p.name).member("rows", rows).member("bytes", bytes).member("burst_us", us);
    out.member("burst_gbps", bytes / us / 1e3).member("burst_of_ceiling", floor / us);
    if (options.sustained_ms > 0) {
      TRY_ASSIGN(const double sustained, time_sustained(body, repetitions, options.sustained_ms, device.stream));
      out.member("sustained_us", sustained).member("sustained_of_ceiling", floor / sustained);
    }
    out.member("tflops", flops / us / 1e6).member("relative_error", error).end_object();
    if (!(error < (p.inter > 0 ? kMaxMlpError : kMaxError)))
      return Error{Code::kCorrupt, std::string(p.name) + ", " + std::to_string(rows) + " rows: relative error " +
                                       std::to_string(error)};
  }
  return {};
}

// The verbs around attention, all launches together. Their parts are checked above and in tests/gpu.
struct Attention {
  MlaShape shape;
  std::vector<Buffer> weights;  // five of each copy
  Buffer gains, frequencies, x, q, attended, out, cache, position, workspace;
  double project_bytes = 0, output_bytes = 0;

  int copies() const { return static_cast<int>(weights.size() / 5); }
  MlaWeights at(int i) const {
    const Buffer* w = &weights[static_cast<size_t>(i % copies()) * 5];
    const float* gain = static_cast<const float*>(gains.data());
    return {w[0].data(), w[1].data(), w[2].data(),
            w[3].data(), w[4].data(), gain,
            gain,        1e-6f,       {static_cast<const float*>(frequencies.data()), shape.rope, 1, true}};
  }
};

Result<Attention> make_attention(const PresetShape& s, int64_t rows, uint64_t seed, cudaStream_t stream) {
  Attention a;
  a.shape = {s.hidden, s.heads, s.q_lora, s.kv_lora, s.nope_dim, s.rope_dim, s.v_dim};
  const GemmShape parts[5] = {mla_down(a.shape), mla_q_b(a.shape), mla_k_up(a.shape), mla_v_up(a.shape),
                              mla_o(a.shape)};
  for (int i = 0; i < 3; ++i) a.project_bytes += static_cast<double>(gemm_bytes(parts[i]));
  for (int i = 3; i < 5; ++i) a.output_bytes += static_cast<double>(gemm_bytes(parts[i]));
  const auto copies = static_cast<int>(std::clamp(kColdBytes / (a.project_bytes + a.output_bytes), 2.0, 16.0));
  for (int i = 0; i < 5 * copies; ++i) {
    TRY_ASSIGN(Buffer weights, random_gemm_weights(parts[i % 5], seed + static_cast<uint64_t>(i), stream));
    a.weights.push_back(std::move(weights));
  }
  const std::vector<float> ones(static_cast<size_t>(std::max(s.q_lora, s.kv_lora)), 1.f);
  std::vector<int32_t> places(static_cast<size_t>(rows));
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i);
  const int64_t latent = s.kv_lora + s.rope_dim;
  const auto upload = [](const auto& host) -> Result<Buffer> {
    const size_t bytes = host.size() * sizeof(host[0]);
    TRY_ASSIGN(Buffer buffer, allocate_device(static_cast<int64_t>(bytes), "a table"));
    TRY(cuda_status(cudaMemcpy(buffer.data(), host.data(), bytes, cudaMemcpyHostToDevice), "upload"));
    return buffer;
  };
  TRY_ASSIGN(a.gains, upload(ones));
  TRY_ASSIGN(a.frequencies, upload(ones));
  TRY_ASSIGN(a.position, upload(places));
  TRY_ASSIGN(a.x, random_matrix(rows, s.hidden, seed + 7, stream));
  TRY_ASSIGN(a.attended, random_matrix(rows, int64_t{s.heads} * s.kv_lora, seed + 8, stream));
  TRY_ASSIGN(a.q, allocate_device(rows * s.heads * latent * 2, "queries"));
  TRY_ASSIGN(a.out, allocate_device(rows * s.hidden * 2, "outputs"));
  TRY_ASSIGN(a.cache, allocate_device(rows * latent * 2, "the cache"));
  TRY_ASSIGN(a.workspace, allocate_device(mla_workspace_bytes(a.shape, static_cast<int32_t>(rows)), "workspace"));
  TRY(init_gemm_workspace(a.workspace.data(), stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "packing"));
  return a;
}

Status bench_attention(const BenchOptions& options, const BenchDevice& device, const Gpu& gpu,
                       const std::vector<int32_t>& row_counts, JsonWriter& out) {
  const int32_t max_rows = *std::max_element(row_counts.begin(), row_counts.end());
  TRY_ASSIGN(const Attention a, make_attention(options.shape, max_rows, options.seed, device.stream));
  const int32_t* places = static_cast<const int32_t*>(a.position.data());
  const CacheRows to{places, places, a.cache.data(), int64_t{a.shape.kv_lora} + a.shape.rope};
  for (const bool project : {true, false})
    for (const int32_t rows : row_counts) {
      const auto body = [&](int i, cudaStream_t s) {
        return project
                   ? run_mla_project(a.shape, gpu, a.at(i), {a.x.data(), a.q.data(), rows, to, a.workspace.data()}, s)
                   : run_mla_output(a.shape, gpu, a.at(i), {a.attended.data(), a.out.data(), rows, a.workspace.data()},
                                    s);
      };
      TRY_ASSIGN(const double us, time_burst(body, a.copies(), options.samples, device.stream));
      const double bytes = project ? a.project_bytes : a.output_bytes;
      const char* name = project ? "mla_project" : "mla_output";
      std::printf("%-11s %5d | %8.1f %8.1f | %6.0f %6.1f |\n", name, rows, bytes / 1e6, us, bytes / us / 1e3,
                  100 * bytes / device.read_ceiling_gbps / 1e3 / us);
      out.begin_object().member("product", name).member("rows", rows).member("bytes", bytes).member("burst_us", us);
      out.member("burst_of_ceiling", bytes / device.read_ceiling_gbps / 1e3 / us).end_object();
    }
  return {};
}

}  // namespace

Status bench_dense(const BenchOptions& options, const BenchDevice& device, JsonWriter& out) {
  TRY_ASSIGN(Gpu gpu, current_gpu());
  if (options.shared_bytes > 0) gpu.shared_bytes = std::min(gpu.shared_bytes, options.shared_bytes);
  std::printf("%-11s %5s | %8s %8s | %6s %6s | %7s %9s\n", "product", "rows", "MB", "us", "GB/s", "% read", "TFLOP/s",
              "error");
  out.begin_object().member("verb", "dense").key("points").begin_array();
  const std::vector<int32_t> own = {1, 4, 9, 16, 33, 64, 256, 1024};
  Status status;
  for (const Product& p : products(options.shape)) {
    status = bench_product(options, device, gpu, p, options.rows.empty() ? own : options.rows, out);
    if (!status.ok()) break;
  }
  if (status.ok()) status = bench_attention(options, device, gpu, options.rows.empty() ? own : options.rows, out);
  out.end_array().end_object();
  return status;
}

}  // namespace ddtree::cuda
