// op_bench: times the CUDA verbs at given shapes and checks them against a reference in double precision.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "base/json_writer.h"
#include "op_bench/experts_bench.h"

namespace ddtree::cuda {
namespace {

constexpr double kMaxError = 5e-3;  // three roundings to bf16 (h, y, out), each 1.7e-3 of the norm

std::string to_json(const ExpertsBench& bench, const ExpertsReport& report, const std::string& commit,
                    const std::string& command) {
  JsonWriter out(2);
  out.begin_object().member("verb", "experts").member("device", report.device).member("commit", commit);
  out.member("command", command).member("experts", bench.shape.experts).member("hidden", bench.shape.hidden);
  out.member("inter", bench.shape.inter)
      .member("top_k", bench.shape.top_k)
      .member("read_ceiling_gbps", report.ceiling_gbps);
  out.member("repack_ms", report.pack_ms).key("points").begin_array();
  for (const ExpertsPoint& p : report.points) {
    out.begin_object().member("rows", p.rows).member("mode", p.mode).member("active_experts", p.active);
    out.member("bytes", p.bytes).member("flops", p.flops).member("burst_us", p.burst_us);
    out.member("burst_gbps", p.bytes / p.burst_us / 1e3);
    out.member("burst_of_ceiling", p.bytes / p.burst_us / 1e3 / report.ceiling_gbps);
    if (p.sustained_us > 0) {
      out.member("sustained_us", p.sustained_us).member("sustained_gbps", p.bytes / p.sustained_us / 1e3);
      out.member("sustained_of_ceiling", p.bytes / p.sustained_us / 1e3 / report.ceiling_gbps);
      out.member("clocks_after_sustained", p.clocks);
    }
    out.member("tflops", p.flops / p.burst_us / 1e6).member("relative_error", p.error).end_object();
  }
  out.end_array().end_object();
  return std::move(out).text();
}

int run(int argc, char** argv) {
  CLI::App app("Times the CUDA verbs at given shapes, with random data and cold weights, and checks the results.");
  ExpertsBench bench;
  std::string preset = "kimi-k2.6", json, commit = "unknown";
  bench.rows = {1, 2, 4, 9, 17, 33, 64, 90, 128, 256, 512, 1024};
  bench.modes = {"auto"};
  app.add_option("--preset", preset, "kimi-k2.6 (one GPU) or kimi-k2.6-tp8 (one rank of 8)")
      ->check(CLI::IsMember({"kimi-k2.6", "kimi-k2.6-tp8", "demo"}))
      ->capture_default_str();
  app.add_option("--rows", bench.rows, "row counts, separated by commas")->delimiter(',')->check(CLI::Range(1, 65536));
  app.add_option("--mode", bench.modes, "kernel modes, separated by commas; auto: what the engine uses")
      ->delimiter(',');
  app.add_option("--check-rows", bench.check_rows, "rows compared with the reference")->capture_default_str();
  app.add_option("--shared-bytes", bench.shared_bytes, "shared memory a CTA may use, e.g. 101376 as on sm_120");
  app.add_option("--samples", bench.samples, "burst samples; the median counts")->check(CLI::Range(1, 1000));
  app.add_option("--sustained-ms", bench.sustained_ms, "length of the sustained loop; 0: burst only")
      ->capture_default_str();
  app.add_option("--seed", bench.seed, "of weights, activations and routing")->capture_default_str();
  app.add_option("--json", json, "file for the results");
  app.add_option("--commit", commit, "source revision to note in the results");
  CLI11_PARSE(app, argc, argv);

  if (preset == "demo")
    bench.shape = {32, 256, 128, 4};
  else
    bench.shape = {384, 7168, preset == "kimi-k2.6" ? 2048 : 256, 8};
  const Result<ExpertsReport> report = bench_experts(bench);
  if (!report.ok()) {
    std::fprintf(stderr, "op_bench: %s\n", report.error().message.c_str());
    return 1;
  }
  if (!json.empty()) {
    std::string command = "op_bench";
    for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
    std::ofstream file(json);
    file << to_json(bench, *report, commit, command) << '\n';
    if (!file.flush()) {
      std::fprintf(stderr, "op_bench: --json %s: cannot be written\n", json.c_str());
      return 1;
    }
  }
  for (const ExpertsPoint& p : report->points)
    if (!(p.error < kMaxError)) {
      std::fprintf(stderr, "op_bench: %d rows, %s: relative error %.2e, must be below %.0e\n", p.rows, p.mode.c_str(),
                   p.error, kMaxError);
      return 1;
    }
  return 0;
}

}  // namespace
}  // namespace ddtree::cuda

int main(int argc, char** argv) { return ddtree::cuda::run(argc, argv); }
