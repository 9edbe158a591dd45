// The `head` verb of op_bench: logits over the vocabulary, their largest and the logarithm of the sum of exp.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/gemm/head.h"
#include "base/bf16.h"
#include "op_bench/verb.h"
#include "support/gpu_timing.h"
#include "support/random_dense.h"

namespace ddtree::cuda {
namespace {

constexpr double kMaxError = 1e-4;  // of a logit, in units of the row's root mean square: fp32 sums

struct Problem {
  GemmShape shape;
  std::vector<Buffer> weights;
  std::vector<uint16_t> x_host;
  Buffer x, value, id, lse, logits, workspace;
};

Result<Problem> make_problem(const GemmShape& shape, int32_t max_rows, uint64_t seed, cudaStream_t stream) {
  Problem p;
  p.shape = shape;
  for (uint64_t i = 0; i < 2; ++i) {
    TRY_ASSIGN(Buffer weights, random_gemm_weights(shape, seed + i, stream));
    p.weights.push_back(std::move(weights));
  }
  p.x_host = random_host_matrix(max_rows, shape.in, seed + 7);
  TRY_ASSIGN(p.x, random_matrix(max_rows, shape.in, seed + 7, stream));
  TRY_ASSIGN(p.value, allocate_device(int64_t{max_rows} * kMaxHeadTop * 4, "results"));
  TRY_ASSIGN(p.id, allocate_device(int64_t{max_rows} * kMaxHeadTop * 4, "results"));
  TRY_ASSIGN(p.lse, allocate_device(int64_t{max_rows} * 4, "results"));
  TRY_ASSIGN(p.logits, allocate_device(int64_t{max_rows} * shape.rows * 4, "logits"));
  TRY_ASSIGN(p.workspace, allocate_device(head_workspace_bytes(shape, kMaxHeadTop), "workspace"));
  TRY(init_gemm_workspace(p.workspace.data(), stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "packing"));
  return p;
}

Status run(const Problem& p, const Gpu& gpu, int32_t rows, int32_t k, bool logits, int i, cudaStream_t stream) {
  HeadArgs args;
  args.weights = {p.shape, p.weights[static_cast<size_t>(i) % p.weights.size()].data()};
  args.x = p.x.data();
  args.rows = rows;
  args.k = k;
  args.top_value = static_cast<float*>(p.value.data());
  args.top_id = static_cast<int32_t*>(p.id.data());
  args.lse = static_cast<float*>(p.lse.data());
  args.logits = logits ? static_cast<float*>(p.logits.data()) : nullptr;
  args.workspace = p.workspace.data();
  return run_head(gpu, args, stream);
}

// The largest logit of a row is the one of its id, and no sampled logit is above it.
Result<double> check(const Problem& p, const Gpu& gpu, int32_t rows, int32_t k, uint64_t seed, cudaStream_t stream) {
  TRY(run(p, gpu, rows, k, false, 0, stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "head"));
  const int32_t row = rows / 2;
  float value = 0;
  int32_t id = 0;
  const int64_t at = int64_t{row} * k;
  TRY(cuda_status(cudaMemcpy(&value, static_cast<float*>(p.value.data()) + at, 4, cudaMemcpyDeviceToHost), "download"));
  TRY(cuda_status(cudaMemcpy(&id, static_cast<int32_t*>(p.id.data()) + at, 4, cudaMemcpyDeviceToHost), "download"));
  std::vector<float> x(static_cast<size_t>(p.shape.in));
  for (size_t i = 0; i < x.size(); ++i) x[i] = bf16_to_f32(p.x_host[static_cast<size_t>(row) * x.size() + i]);
  const double want = random_gemm_output(p.shape, seed, 0, id, x);
  double squares = 0, error = std::abs(static_cast<double>(value) - want);
  constexpr int kSamples = 256;
  for (int32_t i = 0; i < kSamples; ++i) {
    const auto other = static_cast<int32_t>(i * int64_t{7919} % p.shape.rows);
    const double logit = random_gemm_output(p.shape, seed, 0, other, x);
    error = std::max(error, logit - static_cast<double>(value));
    squares += logit * logit / kSamples;
  }
  return error / std::sqrt(squares);
}

struct Variant {
  int32_t k;
  bool logits;
};

}  // namespace

Status bench_head(const BenchOptions& options, const BenchDevice& device, JsonWriter& out) {
  TRY_ASSIGN(Gpu gpu, current_gpu());
  if (options.shared_bytes > 0) gpu.shared_bytes = std::min(gpu.shared_bytes, options.shared_bytes);
  const GemmShape shape{1, options.shape.vocabulary, options.shape.hidden};
  const std::vector<int32_t> own = {1, 9, 16, 33, 64, 256};
  const std::vector<int32_t>& row_counts = options.rows.empty() ? own : options.rows;
  const int32_t max_rows = *std::max_element(row_counts.begin(), row_counts.end());
  TRY_ASSIGN(const Problem p, make_problem(shape, max_rows, options.seed, device.stream));
  const double bytes = static_cast<double>(gemm_bytes(shape));
  std::printf("# head, vocabulary %d, hidden %d\n%5s %3s %-6s | %8s %6s %6s %9s\n", shape.rows, shape.in, "rows", "k",
              "logits", "us", "GB/s", "% read", "error");
  out.begin_object().member("verb", "head").member("vocabulary", shape.rows).member("bytes", bytes);
  out.key("points").begin_array();
  for (const int32_t rows : row_counts)
    for (const Variant v : {Variant{1, false}, Variant{16, false}, Variant{64, false}, Variant{1, true}}) {
      TRY_ASSIGN(const double error, check(p, gpu, rows, v.k, options.seed, device.stream));
      const auto body = [&](int i, cudaStream_t s) { return run(p, gpu, rows, v.k, v.logits, i, s); };
      TRY_ASSIGN(const double us, time_burst(body, 2, options.samples, device.stream));
      const double share = bytes / device.read_ceiling_gbps / 1e3 / us;
      std::printf("%5d %3d %-6s | %8.1f %6.0f %6.1f %9.2e\n", rows, v.k, v.logits ? "all" : "none", us,
                  bytes / us / 1e3, 100 * share, error);
      std::fflush(stdout);
      out.begin_object().member("rows", rows).member("k", v.k).member("logits", v.logits).member("burst_us", us);
      out.member("burst_of_ceiling", share).member("error", error).end_object();
      if (!(error < kMaxError))
        return Error{Code::kCorrupt, "head, " + std::to_string(rows) + " rows: error " + std::to_string(error)};
    }
  out.end_array().end_object();
  return {};
}

}  // namespace ddtree::cuda
