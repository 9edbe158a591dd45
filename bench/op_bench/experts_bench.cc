// The `experts` verb of op_bench: one MoE layer's routed experts.
#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/moe/layout.h"
#include "base/bf16.h"
#include "op_bench/verb.h"
#include "support/gpu_timing.h"
#include "support/random_experts.h"

namespace ddtree::cuda {
namespace {

constexpr std::array<const char*, kExpertModes> kModeNames = {"split32", "split64", "split128",
                                                              "wide8",   "wide16",  "wide32"};

Result<std::optional<ExpertMode>> mode_of(const std::string& name) {
  if (name == "auto") return std::optional<ExpertMode>();
  for (int i = 0; i < kExpertModes; ++i)
    if (name == kModeNames[static_cast<size_t>(i)]) return std::optional(static_cast<ExpertMode>(i));
  return Error{Code::kInvalidArgument,
               "--mode " + name + ": must be auto, split32, split64, split128, wide8, wide16 or wide32"};
}

constexpr double kMaxError = 5e-3;  // three roundings to bf16 (h, y, out), each 1.7e-3 of the norm

struct Layer {
  ExpertShape shape;
  uint64_t seed = 0;
  int32_t check_rows = 0;
};

struct Point {
  int32_t rows = 0;
  const char* mode = "";
  double active = 0;  // distinct experts, mean over the routings
  double bytes = 0;   // that must move: packed weights of the active experts
  double flops = 0;
  double burst_us = 0, sustained_us = 0;
  double error = 0;    // worst relative error of the checked rows
  std::string clocks;  // just after the sustained loop
};

// Device copies of everything a launch needs besides the weights.
struct Problem {
  std::vector<Routing> routings;
  std::vector<uint16_t> x_host;
  Buffer x, out, workspace, ids, weights;  // ids and weights of all routings
  double active = 0;
};

Status upload(void* dst, const void* src, size_t bytes) {
  return cuda_status(cudaMemcpy(dst, src, bytes, cudaMemcpyHostToDevice), "upload");
}

Result<Problem> make_problem(const Layer& layer, int32_t rows, int repetitions, cudaStream_t stream) {
  const ExpertShape& shape = layer.shape;
  Problem p;
  const int64_t slots = static_cast<int64_t>(rows) * shape.top_k, values = static_cast<int64_t>(rows) * shape.hidden;
  p.x_host = random_activations(values, layer.seed);
  TRY_ASSIGN(p.x, allocate_device(values * 2, "activations"));
  TRY_ASSIGN(p.out, allocate_device(values * 2, "outputs"));
  TRY_ASSIGN(p.workspace, allocate_device(expert_workspace_bytes(shape, rows), "workspace"));
  TRY_ASSIGN(p.ids, allocate_device(repetitions * slots * 4, "routing"));
  TRY_ASSIGN(p.weights, allocate_device(repetitions * slots * 4, "routing"));
  TRY(upload(p.x.data(), p.x_host.data(), static_cast<size_t>(values) * 2));
  for (int i = 0; i < repetitions; ++i) {
    p.routings.push_back(random_routing(shape, rows, layer.seed + static_cast<uint64_t>(i)));
    const Routing& r = p.routings.back();
    p.active += static_cast<double>(r.active) / repetitions;
    TRY(upload(static_cast<int32_t*>(p.ids.data()) + i * slots, r.ids.data(), static_cast<size_t>(slots) * 4));
    TRY(upload(static_cast<float*>(p.weights.data()) + i * slots, r.weights.data(), static_cast<size_t>(slots) * 4));
  }
  TRY(init_expert_workspace(shape, rows, p.workspace.data(), stream));
  return p;
}

// The worst relative error of a few rows of repetition 0, from poisoned buffers.
Result<double> check(const Layer& layer, const Problem& p, int32_t rows,
                     const std::function<Status(int, cudaStream_t)>& run, cudaStream_t stream) {
  const auto hidden = static_cast<size_t>(layer.shape.hidden), top_k = static_cast<size_t>(layer.shape.top_k);
  TRY(cuda_status(cudaMemset(p.out.data(), 0xff, static_cast<size_t>(p.out.bytes())), "poisoning"));
  TRY(cuda_status(cudaMemset(p.workspace.data(), 0xff, static_cast<size_t>(p.workspace.bytes())), "poisoning"));
  TRY(init_expert_workspace(layer.shape, rows, p.workspace.data(), stream));
  TRY(run(0, stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "experts"));
  double worst = 0;
  for (int32_t i = 0; i < std::min(layer.check_rows, rows); ++i) {
    const auto row = static_cast<size_t>(i == 0 ? rows - 1 : i * 7919 % rows);
    std::vector<uint16_t> got(hidden);
    TRY(cuda_status(
        cudaMemcpy(got.data(), static_cast<uint16_t*>(p.out.data()) + row * hidden, hidden * 2, cudaMemcpyDeviceToHost),
        "download"));
    std::vector<float> x(hidden);
    for (size_t k = 0; k < hidden; ++k) x[k] = bf16_to_f32(p.x_host[row * hidden + k]);
    const std::span<const int32_t> ids = p.routings[0].ids;
    const std::span<const float> weights = p.routings[0].weights;
    const std::vector<double> want =
        reference_row(layer.shape, layer.seed, x, ids.subspan(row * top_k, top_k), weights.subspan(row * top_k, top_k));
    worst = std::max(worst, relative_error(got, want));
  }
  return worst;
}

void report(const Point& p, double ceiling, JsonWriter& out) {
  const auto rate = [&](double us) { return us > 0 ? p.bytes / us / 1e3 : 0; };
  std::printf("%5d %-9s %7.1f | %9.1f %6.0f %6.1f | %9.1f %6.0f %6.1f | %7.1f %9.2e | %s\n", p.rows, p.mode, p.active,
              p.burst_us, rate(p.burst_us), 100 * rate(p.burst_us) / ceiling, p.sustained_us, rate(p.sustained_us),
              100 * rate(p.sustained_us) / ceiling, p.flops / p.burst_us / 1e6, p.error, p.clocks.c_str());
  std::fflush(stdout);
  out.begin_object().member("rows", p.rows).member("mode", p.mode).member("active_experts", p.active);
  out.member("bytes", p.bytes).member("flops", p.flops).member("burst_us", p.burst_us);
  out.member("burst_gbps", rate(p.burst_us)).member("burst_of_ceiling", rate(p.burst_us) / ceiling);
  if (p.sustained_us > 0) {
    out.member("sustained_us", p.sustained_us).member("sustained_gbps", rate(p.sustained_us));
    out.member("sustained_of_ceiling", rate(p.sustained_us) / ceiling).member("clocks_after_sustained", p.clocks);
  }
  out.member("tflops", p.flops / p.burst_us / 1e6).member("relative_error", p.error).end_object();
}

Status bench_rows(const BenchOptions& options, const BenchDevice& device, const Layer& layer, ExpertDevice limits,
                  const RandomExperts& experts, int32_t rows, JsonWriter& out) {
  const double expert_bytes =
      static_cast<double>(gate_up_bytes(layer.shape) + down_bytes(layer.shape)) / layer.shape.experts;
  const double guess = 10 + expert_bytes * std::min(layer.shape.experts, rows * layer.shape.top_k) / 4.0e6;
  const int repetitions = std::max(4, std::min(32, static_cast<int>(3000 / guess)));
  TRY_ASSIGN(const Problem p, make_problem(layer, rows, repetitions, device.stream));
  for (const std::string& name : options.modes) {
    TRY_ASSIGN(const std::optional<ExpertMode> forced, mode_of(name));
    const ExpertMode mode = forced ? *forced : pick_expert_mode(layer.shape, limits, rows);
    const auto run = [&](int i, cudaStream_t s) {
      const int64_t at = i * static_cast<int64_t>(rows) * layer.shape.top_k;
      return run_experts(
          layer.shape, limits,
          {experts.gate_up.data(), experts.down.data(), p.x.data(), static_cast<const int32_t*>(p.ids.data()) + at,
           static_cast<const float*>(p.weights.data()) + at, p.out.data(), rows, p.workspace.data(), mode},
          s);
    };
    Point point;
    point.rows = rows;
    point.mode = kModeNames[static_cast<size_t>(mode)];
    point.active = p.active;
    point.bytes = p.active * expert_bytes;
    point.flops = 2.0 * rows * layer.shape.top_k * 3 * layer.shape.hidden * layer.shape.inter;
    TRY_ASSIGN(point.error, check(layer, p, rows, run, device.stream));
    TRY_ASSIGN(point.burst_us, time_burst(run, repetitions, options.samples, device.stream));
    if (options.sustained_ms > 0) {
      TRY_ASSIGN(point.sustained_us, time_sustained(run, repetitions, options.sustained_ms, device.stream));
      point.clocks = clock_state();
    }
    report(point, device.read_ceiling_gbps, out);
    if (!(point.error < kMaxError))
      return Error{Code::kCorrupt, "experts, " + std::to_string(rows) + " rows, " + point.mode + ": relative error " +
                                       std::to_string(point.error) + ", must be below " + std::to_string(kMaxError)};
  }
  return {};
}

}  // namespace

Status bench_experts(const BenchOptions& options, const BenchDevice& device, JsonWriter& out) {
  const Layer layer{{options.shape.experts, options.shape.hidden, options.shape.inter, options.shape.top_k},
                    options.seed,
                    options.check_rows};
  TRY(check_expert_shape(layer.shape));
  TRY_ASSIGN(ExpertDevice limits, expert_device());
  if (options.shared_bytes > 0) limits.shared_bytes = std::min(limits.shared_bytes, options.shared_bytes);
  TRY_ASSIGN(const RandomExperts experts, make_random_experts(layer.shape, layer.seed, device.stream));
  std::printf("# experts %d, hidden %d, inter %d, top_k %d; repack %.1f ms\n", layer.shape.experts, layer.shape.hidden,
              layer.shape.inter, layer.shape.top_k, experts.pack_ms);
  std::printf("%5s %-9s %7s | %9s %6s %6s | %9s %6s %6s | %7s %9s | clocks after\n", "rows", "mode", "active",
              "burst us", "GB/s", "% read", "sust. us", "GB/s", "% read", "TFLOP/s", "error");
  out.begin_object().member("verb", "experts").member("experts", layer.shape.experts);
  out.member("hidden", layer.shape.hidden).member("inter", layer.shape.inter).member("top_k", layer.shape.top_k);
  out.member("repack_ms", experts.pack_ms).key("points").begin_array();
  const std::vector<int32_t> own = {1, 2, 4, 9, 17, 33, 64, 90, 128, 192, 256, 384, 512, 768, 1024, 1088};
  Status status;
  for (const int32_t rows : options.rows.empty() ? own : options.rows) {
    status = bench_rows(options, device, layer, limits, experts, rows, out);
    if (!status.ok()) break;
  }
  out.end_array().end_object();
  return status;
}

}  // namespace ddtree::cuda
