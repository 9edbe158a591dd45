// op_bench: times the CUDA verbs at given shapes and checks them against references.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "base/json_writer.h"
#include "op_bench/verb.h"
#include "support/gpu_timing.h"

namespace ddtree::cuda {
namespace {

constexpr BenchVerb kVerbs[] = {
    {"experts", bench_experts},
    {"dense", bench_dense},
    {"head", bench_head},
    {"trees", bench_trees},
    {"moe", bench_moe},
    {"attend", bench_attend},
    {"draft_attend", bench_draft_attend},
};

constexpr PresetShape kKimi{7168, 64, 1536, 512, 64, 128, 128, 384, 8, 2048, 2048, 18432, 163840, 6, 64, 8, 128, 8};
constexpr PresetShape kKimiRank{7168, 8, 1536, 512, 64, 128, 128, 384, 8, 256, 256, 2304, 20480, 6, 8, 1, 128, 8};
constexpr PresetShape kDemo{256, 4, 128, 512, 64, 128, 128, 32, 4, 128, 128, 768, 4096, 2, 4, 2, 64, 8};
const std::map<std::string, PresetShape> kPresets = {
    {"kimi-k2.6", kKimi}, {"kimi-k2.6-tp8", kKimiRank}, {"demo", kDemo}};

constexpr int64_t kCeilingBytes = int64_t{4} << 30;

Result<BenchDevice> open_device() {
  BenchDevice device;
  TRY(cuda_status(cudaStreamCreate(&device.stream), "cudaStreamCreate"));
  cudaDeviceProp properties{};
  TRY(cuda_status(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties"));
  device.name = properties.name;
  device.sms = properties.multiProcessorCount;
  TRY_ASSIGN(const Buffer data, allocate_device(kCeilingBytes, "the read ceiling"));
  TRY(cuda_status(cudaMemset(data.data(), 1, kCeilingBytes), "the read ceiling"));
  TRY_ASSIGN(device.read_ceiling_gbps, read_ceiling(data.data(), kCeilingBytes, device.stream));
  return device;
}

Status run_verbs(const BenchOptions& options, const std::vector<std::string>& names, JsonWriter& out) {
  TRY_ASSIGN(const BenchDevice device, open_device());
  std::printf("# %s, %d SMs, plain read %.0f GB/s; preset %s\n", device.name.c_str(), device.sms,
              device.read_ceiling_gbps, options.preset.c_str());
  out.member("device", device.name).member("read_ceiling_gbps", device.read_ceiling_gbps);
  out.member("clocks_before", clock_state()).key("verbs").begin_array();
  Status status;
  for (const BenchVerb& verb : kVerbs) {
    if (!names.empty() && std::find(names.begin(), names.end(), verb.name) == names.end()) continue;
    status = verb.run(options, device, out);
    if (!status.ok()) break;
  }
  out.end_array();
  cudaStreamDestroy(device.stream);
  return status;
}

int run(int argc, char** argv) {
  CLI::App app("Times the CUDA verbs at given shapes, with random data and cold weights, and checks the results.");
  BenchOptions options;
  std::string json, commit = "unknown", command = "op_bench";
  std::vector<std::string> verbs, known, presets;
  for (const BenchVerb& verb : kVerbs) known.emplace_back(verb.name);
  for (const auto& [name, shape] : kPresets) presets.push_back(name);
  options.preset = "kimi-k2.6";
  options.modes = {"auto"};
  app.add_option("--preset", options.preset, "kimi-k2.6 (one GPU), kimi-k2.6-tp8 (one rank of 8) or demo")
      ->check(CLI::IsMember(presets))
      ->capture_default_str();
  app.add_option("--verb", verbs, "verbs, separated by commas; all if not given")
      ->delimiter(',')
      ->check(CLI::IsMember(known));
  app.add_option("--rows", options.rows, "row counts, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 65536));
  app.add_option("--context", options.contexts, "context lengths of attention, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--streams", options.streams, "stream counts of attention, separated by commas")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  app.add_option("--mode", options.modes,
                 "modes of the experts, separated by commas; auto: what the engine uses; attention has auto and mma")
      ->delimiter(',');
  app.add_option("--check-rows", options.check_rows, "rows compared with the reference")->capture_default_str();
  app.add_option("--shared-bytes", options.shared_bytes, "shared memory a CTA may use, e.g. 101376 as on sm_120");
  app.add_option("--samples", options.samples, "burst samples; the median counts")->check(CLI::Range(1, 1000));
  app.add_option("--sustained-ms", options.sustained_ms, "length of the sustained loop; 0: burst only")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of weights, activations and routing")->capture_default_str();
  app.add_option("--json", json, "file for the results");
  app.add_option("--commit", commit, "source revision to note in the results");
  CLI11_PARSE(app, argc, argv);
  options.shape = kPresets.at(options.preset);
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];

  JsonWriter out(2);
  out.begin_object().member("commit", commit).member("command", command).member("preset", options.preset);
  const Status status = run_verbs(options, verbs, out);
  if (!status.ok()) {
    std::fprintf(stderr, "op_bench: %s\n", status.error().message.c_str());
    return 1;
  }
  out.member("seed", options.seed).end_object();
  if (!json.empty()) {
    std::ofstream file(json);
    file << std::move(out).text() << '\n';
    if (!file.flush()) {
      std::fprintf(stderr, "op_bench: --json %s: cannot be written\n", json.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace ddtree::cuda

int main(int argc, char** argv) { return ddtree::cuda::run(argc, argv); }
