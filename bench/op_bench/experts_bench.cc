#include "op_bench/experts_bench.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/moe/layout.h"
#include "base/bf16.h"
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

// What the driver's tool says about clocks, power and throttling.
std::string clock_state() {
  const char* command =
      "nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,clocks_event_reasons.active --format=csv,noheader "
      "2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  std::array<char, 256> line{};
  if (!pipe || fgets(line.data(), line.size(), pipe.get()) == nullptr) return "unknown";
  std::string text(line.data());
  return text.substr(0, text.find('\n'));
}

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

Result<Problem> make_problem(const ExpertsBench& bench, int32_t rows, int repetitions, cudaStream_t stream) {
  const ExpertShape& shape = bench.shape;
  Problem p;
  const int64_t slots = static_cast<int64_t>(rows) * shape.top_k, values = static_cast<int64_t>(rows) * shape.hidden;
  p.x_host = random_activations(values, bench.seed);
  TRY_ASSIGN(p.x, allocate_device(values * 2, "activations"));
  TRY_ASSIGN(p.out, allocate_device(values * 2, "outputs"));
  TRY_ASSIGN(p.workspace, allocate_device(expert_workspace_bytes(shape, rows), "workspace"));
  TRY_ASSIGN(p.ids, allocate_device(repetitions * slots * 4, "routing"));
  TRY_ASSIGN(p.weights, allocate_device(repetitions * slots * 4, "routing"));
  TRY(upload(p.x.data(), p.x_host.data(), static_cast<size_t>(values) * 2));
  for (int i = 0; i < repetitions; ++i) {
    p.routings.push_back(random_routing(shape, rows, bench.seed + static_cast<uint64_t>(i)));
    const Routing& r = p.routings.back();
    p.active += static_cast<double>(r.active) / repetitions;
    TRY(upload(static_cast<int32_t*>(p.ids.data()) + i * slots, r.ids.data(), static_cast<size_t>(slots) * 4));
    TRY(upload(static_cast<float*>(p.weights.data()) + i * slots, r.weights.data(), static_cast<size_t>(slots) * 4));
  }
  TRY(init_expert_workspace(shape, rows, p.workspace.data(), stream));
  return p;
}

// The worst relative error of a few rows of repetition 0, from poisoned buffers.
Result<double> check(const ExpertsBench& bench, const Problem& p, int32_t rows,
                     const std::function<Status(int, cudaStream_t)>& run, cudaStream_t stream) {
  const auto hidden = static_cast<size_t>(bench.shape.hidden), top_k = static_cast<size_t>(bench.shape.top_k);
  TRY(cuda_status(cudaMemset(p.out.data(), 0xff, static_cast<size_t>(p.out.bytes())), "poisoning"));
  TRY(cuda_status(cudaMemset(p.workspace.data(), 0xff, static_cast<size_t>(p.workspace.bytes())), "poisoning"));
  TRY(init_expert_workspace(bench.shape, rows, p.workspace.data(), stream));
  TRY(run(0, stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "experts"));
  double worst = 0;
  for (int32_t i = 0; i < std::min(bench.check_rows, rows); ++i) {
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
        reference_row(bench.shape, bench.seed, x, ids.subspan(row * top_k, top_k), weights.subspan(row * top_k, top_k));
    worst = std::max(worst, relative_error(got, want));
  }
  return worst;
}

}  // namespace

std::string expert_mode_name(ExpertMode mode) { return kModeNames[static_cast<size_t>(mode)]; }

Result<ExpertsReport> bench_experts(const ExpertsBench& bench) {
  TRY(check_expert_shape(bench.shape));
  ExpertsReport report;
  cudaStream_t stream = nullptr;
  TRY(cuda_status(cudaStreamCreate(&stream), "cudaStreamCreate"));
  TRY_ASSIGN(ExpertDevice device, expert_device());
  if (bench.shared_bytes > 0) device.shared_bytes = std::min(device.shared_bytes, bench.shared_bytes);
  cudaDeviceProp properties{};
  TRY(cuda_status(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  report.device = properties.name;
  TRY_ASSIGN(const RandomExperts experts, make_random_experts(bench.shape, bench.seed, stream));
  report.pack_ms = experts.pack_ms;
  TRY_ASSIGN(report.ceiling_gbps, read_ceiling(experts.gate_up.data(), experts.gate_up.bytes(), stream));
  std::printf("# %s, %d SMs; experts %d, hidden %d, inter %d, top_k %d; repack %.1f ms; plain read %.0f GB/s\n",
              report.device.c_str(), device.sms, bench.shape.experts, bench.shape.hidden, bench.shape.inter,
              bench.shape.top_k, report.pack_ms, report.ceiling_gbps);
  std::printf("%5s %-9s %7s | %9s %6s %6s | %9s %6s %6s | %7s %9s | clocks after\n", "rows", "mode", "active",
              "burst us", "GB/s", "% read", "sust. us", "GB/s", "% read", "TFLOP/s", "error");
  const double expert_bytes =
      static_cast<double>(gate_up_bytes(bench.shape) + down_bytes(bench.shape)) / bench.shape.experts;
  for (const int32_t rows : bench.rows) {
    const double guess = 10 + expert_bytes * std::min(bench.shape.experts, rows * bench.shape.top_k) / 4.0e6;
    const int repetitions = std::max(4, std::min(32, static_cast<int>(3000 / guess)));
    TRY_ASSIGN(const Problem p, make_problem(bench, rows, repetitions, stream));
    for (const std::string& name : bench.modes) {
      TRY_ASSIGN(const std::optional<ExpertMode> forced, mode_of(name));
      const ExpertMode mode = forced ? *forced : pick_expert_mode(bench.shape, device, rows);
      const auto run = [&](int i, cudaStream_t s) {
        const int64_t at = i * static_cast<int64_t>(rows) * bench.shape.top_k;
        return run_experts(
            bench.shape, device,
            {experts.gate_up.data(), experts.down.data(), p.x.data(), static_cast<const int32_t*>(p.ids.data()) + at,
             static_cast<const float*>(p.weights.data()) + at, p.out.data(), rows, p.workspace.data(), mode},
            s);
      };
      ExpertsPoint point;
      point.rows = rows;
      point.mode = expert_mode_name(mode);
      point.active = p.active;
      point.bytes = p.active * expert_bytes;
      point.flops = 2.0 * rows * bench.shape.top_k * 3 * bench.shape.hidden * bench.shape.inter;
      TRY_ASSIGN(point.error, check(bench, p, rows, run, stream));
      TRY_ASSIGN(point.burst_us, time_burst(run, repetitions, bench.samples, stream));
      if (bench.sustained_ms > 0) {
        TRY_ASSIGN(point.sustained_us, time_sustained(run, repetitions, bench.sustained_ms, stream));
        point.clocks = clock_state();
      }
      const auto rate = [&](double us) { return us > 0 ? point.bytes / us / 1e3 : 0; };
      std::printf("%5d %-9s %7.1f | %9.1f %6.0f %6.1f | %9.1f %6.0f %6.1f | %7.1f %9.2e | %s\n", rows,
                  point.mode.c_str(), point.active, point.burst_us, rate(point.burst_us),
                  100 * rate(point.burst_us) / report.ceiling_gbps, point.sustained_us, rate(point.sustained_us),
                  100 * rate(point.sustained_us) / report.ceiling_gbps, point.flops / point.burst_us / 1e6, point.error,
                  point.clocks.c_str());
      std::fflush(stdout);
      report.points.push_back(point);
    }
  }
  cudaStreamDestroy(stream);
  return report;
}

}  // namespace ddtree::cuda
