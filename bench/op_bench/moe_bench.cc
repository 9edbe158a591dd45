// The `moe` verb of op_bench: a whole mixture-of-experts layer, beside its routed experts alone.
#include <algorithm>
#include <cstdio>
#include <set>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "base/bf16.h"
#include "op_bench/verb.h"
#include "support/gpu_timing.h"
#include "support/random_moe.h"

namespace ddtree::cuda {
namespace {

constexpr int kCopies = 4;           // of router and shared expert, so that they are cold
constexpr double kMaxError = 5e-3;   // three roundings to bf16, each 1.7e-3 of the norm
constexpr double kMinMargin = 3e-6;  // below it float32 may choose otherwise

struct Point {
  int32_t rows = 0;
  double active = 0;
  double routed_bytes = 0, bytes = 0;
  double routed_us = 0, router_us = 0;
  double us = 0, beside_us = 0;  // one after another; the shared expert beside the router
  double error = 0;
};

// Inputs of all repetitions, and what the router makes of them.
struct Problem {
  std::vector<uint16_t> host;
  Buffer x, out, workspace, ids, weights;
};

Result<Problem> make_problem(const RandomMoe& moe, const ExpertDevice& device, int32_t rows, int repetitions,
                             cudaStream_t stream, double& active) {
  const MoeShape& shape = moe.shape;
  const int64_t values = static_cast<int64_t>(rows) * shape.experts.hidden,
                slots = static_cast<int64_t>(rows) * shape.experts.top_k;
  Problem p;
  p.host = random_activations(values * repetitions, moe.seed);
  TRY_ASSIGN(p.x, allocate_device(values * repetitions * 2, "activations"));
  TRY_ASSIGN(p.out, allocate_device(values * 2, "outputs"));
  TRY_ASSIGN(p.workspace, allocate_device(moe_workspace_bytes(shape, rows), "workspace"));
  TRY_ASSIGN(p.ids, allocate_device(slots * repetitions * 4, "choices"));
  TRY_ASSIGN(p.weights, allocate_device(slots * repetitions * 4, "choices"));
  TRY(cuda_status(cudaMemcpy(p.x.data(), p.host.data(), p.host.size() * 2, cudaMemcpyHostToDevice), "activations"));
  TRY_ASSIGN(const Buffer work, allocate_device(router_workspace_bytes(shape.router, rows), "workspace"));
  TRY(init_gemm_workspace(work.data(), stream));
  for (int i = 0; i < repetitions; ++i)
    TRY(run_router(
        shape.router, {device.sms, device.shared_bytes},
        {moe.router[0].data(), static_cast<const float*>(moe.bias.data()),
         static_cast<const uint16_t*>(p.x.data()) + i * values, static_cast<int32_t*>(p.ids.data()) + i * slots,
         static_cast<float*>(p.weights.data()) + i * slots, rows, nullptr, work.data()},
        stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "choices"));
  std::vector<int32_t> ids(static_cast<size_t>(slots * repetitions));
  TRY(cuda_status(cudaMemcpy(ids.data(), p.ids.data(), ids.size() * 4, cudaMemcpyDeviceToHost), "choices"));
  for (int i = 0; i < repetitions; ++i)
    active += static_cast<double>(std::set<int32_t>(ids.begin() + i * slots, ids.begin() + (i + 1) * slots).size()) /
              repetitions;
  return p;
}

Result<double> check(const RandomMoe& moe, const Problem& p, const BenchOptions& options, int32_t rows,
                     const Repetition& run, cudaStream_t stream) {
  const auto hidden = static_cast<size_t>(moe.shape.experts.hidden);
  TRY(cuda_status(cudaMemset(p.out.data(), 0xff, static_cast<size_t>(p.out.bytes())), "poisoning"));
  TRY(run(0, stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "moe"));
  double worst = 0;
  for (int32_t i = 0; i < std::min(options.check_rows, rows); ++i) {
    const auto row = static_cast<size_t>(i == 0 ? rows - 1 : i * 7919 % rows);
    std::vector<uint16_t> got(hidden);
    TRY(cuda_status(cudaMemcpy(got.data(), static_cast<const uint16_t*>(p.out.data()) + row * hidden, hidden * 2,
                               cudaMemcpyDeviceToHost),
                    "download"));
    std::vector<float> x(hidden);
    for (size_t k = 0; k < hidden; ++k) x[k] = bf16_to_f32(p.host[row * hidden + k]);
    const MoeRow want = reference_moe_row(moe.shape, moe.seed, x);
    if (want.margin > kMinMargin) worst = std::max(worst, relative_error(got, want.out));
  }
  return worst;
}

void report(const Point& p, double ceiling, JsonWriter& out) {
  const double routed = p.routed_bytes / p.routed_us / 1e3 / ceiling, whole = p.bytes / p.beside_us / 1e3 / ceiling;
  std::printf("%5d %7.1f | %9.1f %6.1f | %9.1f %9.1f %6.1f | %8.1f | %9.2e\n", p.rows, p.active, p.routed_us,
              100 * routed, p.us, p.beside_us, 100 * whole, p.router_us, p.error);
  std::fflush(stdout);
  out.begin_object().member("rows", p.rows).member("active_experts", p.active);
  out.member("routed_bytes", p.routed_bytes).member("routed_us", p.routed_us).member("routed_of_ceiling", routed);
  out.member("bytes", p.bytes).member("in_line_us", p.us).member("beside_us", p.beside_us).member("of_ceiling", whole);
  out.member("router_us", p.router_us).member("relative_error", p.error).end_object();
}

Status bench_rows(const RandomMoe& moe, const ExpertDevice& device, const BenchOptions& options,
                  const BenchDevice& bench, const MoeSide& side, int32_t rows, JsonWriter& out) {
  const MoeShape& shape = moe.shape;
  const double expert_bytes =
      static_cast<double>(gate_up_bytes(shape.experts) + down_bytes(shape.experts)) / shape.experts.experts;
  const double guess = 20 + expert_bytes * std::min(shape.experts.experts, rows * shape.experts.top_k) / 4.0e6;
  const int repetitions = std::max(4, std::min(24, static_cast<int>(3000 / guess)));
  const int64_t values = static_cast<int64_t>(rows) * shape.experts.hidden,
                slots = static_cast<int64_t>(rows) * shape.experts.top_k;
  Point point;
  point.rows = rows;
  TRY_ASSIGN(const Problem p, make_problem(moe, device, rows, repetitions, bench.stream, point.active));
  TRY(init_moe_workspace(shape, rows, p.workspace.data(), bench.stream));
  const auto x = [&](int i) { return static_cast<const uint16_t*>(p.x.data()) + i * values; };
  const MoeSide* beside = nullptr;
  const auto whole = [&](int i, cudaStream_t s) {
    MoeArgs args;
    args.side = beside;
    args.weights = moe.weights(i);
    args.x = x(i), args.out = p.out.data();
    args.rows = args.max_rows = rows;
    args.workspace = p.workspace.data();
    return run_moe(shape, device, args, s);
  };
  TRY_ASSIGN(point.error, check(moe, p, options, rows, whole, bench.stream));
  TRY_ASSIGN(point.us, time_burst(whole, repetitions, options.samples, bench.stream));
  beside = &side;
  TRY_ASSIGN(point.beside_us, time_burst(whole, repetitions, options.samples, bench.stream));

  TRY_ASSIGN(const Buffer work, allocate_device(expert_workspace_bytes(shape.experts, rows), "workspace"));
  TRY(init_expert_workspace(shape.experts, rows, work.data(), bench.stream));
  const auto routed = [&](int i, cudaStream_t s) {
    return run_experts(shape.experts, device,
                       {moe.experts.gate_up.data(),
                        moe.experts.down.data(),
                        x(i),
                        static_cast<const int32_t*>(p.ids.data()) + i * slots,
                        static_cast<const float*>(p.weights.data()) + i * slots,
                        p.out.data(),
                        rows,
                        work.data(),
                        {}},
                       s);
  };
  TRY_ASSIGN(point.routed_us, time_burst(routed, repetitions, options.samples, bench.stream));

  TRY_ASSIGN(const Buffer router_work, allocate_device(router_workspace_bytes(shape.router, rows), "workspace"));
  TRY(init_gemm_workspace(router_work.data(), bench.stream));
  const auto router = [&](int i, cudaStream_t s) {
    return run_router(shape.router, {device.sms, device.shared_bytes},
                      {moe.router[static_cast<size_t>(i) % kCopies].data(), static_cast<const float*>(moe.bias.data()),
                       x(i), static_cast<int32_t*>(p.ids.data()) + i * slots,
                       static_cast<float*>(p.weights.data()) + i * slots, rows, nullptr, router_work.data()},
                      s);
  };
  TRY_ASSIGN(point.router_us, time_burst(router, repetitions, options.samples, bench.stream));

  point.routed_bytes = point.active * expert_bytes;
  point.bytes = point.routed_bytes + static_cast<double>(gemm_bytes(router_gemm(shape.router)));
  if (shape.shared_inter > 0)
    point.bytes +=
        static_cast<double>(gemm_bytes(mlp_gate_up(shared_shape(shape))) + gemm_bytes(mlp_down(shared_shape(shape))));
  report(point, bench.read_ceiling_gbps, out);
  if (point.error < kMaxError) return {};
  return Error{Code::kCorrupt, "moe, " + std::to_string(rows) + " rows: relative error " + std::to_string(point.error) +
                                   ", must be below " + std::to_string(kMaxError)};
}

}  // namespace

Status bench_moe(const BenchOptions& options, const BenchDevice& bench, JsonWriter& out) {
  const PresetShape& s = options.shape;
  MoeShape shape;
  shape.experts = {s.experts, s.hidden, s.inter, s.top_k};
  shape.router.routing.top_k = s.top_k;
  shape.router.routing.scale = 2.827f;
  shape.router.experts = s.experts;
  shape.router.hidden = s.hidden;
  shape.shared_inter = s.shared_inter;
  TRY(check_moe_shape(shape));
  TRY_ASSIGN(const ExpertDevice device, expert_device());
  TRY_ASSIGN(const RandomMoe moe, make_random_moe(shape, options.seed, kCopies, bench.stream));
  MoeSide side;
  TRY(cuda_status(cudaStreamCreate(&side.stream), "cudaStreamCreate"));
  TRY(cuda_status(cudaEventCreateWithFlags(&side.begin, cudaEventDisableTiming), "cudaEventCreate"));
  TRY(cuda_status(cudaEventCreateWithFlags(&side.end, cudaEventDisableTiming), "cudaEventCreate"));
  std::printf("# moe: %d experts of %d, top %d, shared %d, hidden %d; burst\n", s.experts, s.inter, s.top_k,
              s.shared_inter, s.hidden);
  std::printf(" rows  active | routed us      %% |   in line    beside      %% | router us | rel error\n");
  out.begin_object().member("verb", "moe").key("points").begin_array();
  const std::vector<int32_t> rows =
      options.rows.empty() ? std::vector<int32_t>{1, 2, 4, 9, 17, 33, 64, 90, 128, 256, 512, 1024} : options.rows;
  for (const int32_t m : rows) TRY(bench_rows(moe, device, options, bench, side, m, out));
  out.end_array().end_object();
  cudaEventDestroy(side.begin);
  cudaEventDestroy(side.end);
  cudaStreamDestroy(side.stream);
  return {};
}

}  // namespace ddtree::cuda
