// op_bench: times the cpu backend's verbs, compares them with this machine's roofs, and checks them against ref.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "backend/registry.h"
#include "base/json_writer.h"
#include "ceilings.h"
#include "verbs.h"

namespace ddtree::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kCachedSet = int64_t{17} << 20;  // what the demo model reads for a token
constexpr int64_t kMemorySet = int64_t{256} << 20;
constexpr int64_t kCheckedRows = 3;
constexpr double kMaxError = 1e-4;  // of the largest output: sums of 7168 float32 products stay far below

struct Options {
  std::string device = "cpu", isa = "auto", only;
  int threads = 0;
  double seconds = 0.3;
  std::vector<int64_t> rows = {1, 4, 16, 64, 512};
  bool json = false;
};

struct Point {
  std::string verb, shape;
  int64_t rows = 0;
  double median_us = 0, best_us = 0;
  double gbps = 0, of_read = 0, gflops = 0, of_peak = 0, over_floor = 0;  // all of the median
  double error = 0;
};

// Sorted times of single runs, copies in turn.
std::vector<double> time_runs(Verb& verb, int64_t rows, double seconds) {
  for (int i = 0; i < verb.copies(); ++i) verb.run(i, rows);
  std::vector<double> us;
  const Clock::time_point begin = Clock::now();
  for (int i = 0; us.size() < 5 || std::chrono::duration<double>(Clock::now() - begin).count() < seconds; ++i) {
    const Clock::time_point start = Clock::now();
    verb.run(i % verb.copies(), rows);
    us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::ranges::sort(us);
  return us;
}

// Largest difference of the first rows from ref's, relative to the largest value. A row does not depend on later rows.
double check(const VerbCase& c, Verb& verb, int64_t rows, Backend& ref) {
  const int64_t checked = std::min(rows, kCheckedRows);
  const std::unique_ptr<Verb> expected = c.make(ref, 0, checked);
  expected->run(0, checked);
  verb.run(0, rows);
  const TensorView got = verb.output(rows), want = expected->output(checked);
  double difference = 0, largest = 0;
  for (int64_t r = 0; r < checked; ++r)
    for (int64_t i = 0; i < want.row_elements(); ++i) {
      const double w = want.row<float>(r)[i], d = std::abs(got.row<float>(r)[i] - w);
      difference = std::isnan(d) ? INFINITY : std::max(difference, d);
      largest = std::max(largest, std::abs(w));
    }
  return difference / largest;
}

Point measure(const VerbCase& c, Verb& verb, int64_t rows, const Ceilings& roof, const Options& options) {
  const std::vector<double> us = time_runs(verb, rows, options.seconds);
  Point p{c.name, c.shape, rows, us[us.size() / 2], us[0], 0, 0, 0, 0, 0, 0};
  const double read = c.cached ? roof.cached_gbps : roof.memory_gbps;
  p.gbps = c.bytes(rows) / p.median_us / 1e3;
  p.gflops = c.flops(rows) / p.median_us / 1e3;
  p.of_read = p.gbps / read;
  p.of_peak = p.gflops / roof.gflops;
  p.over_floor = p.median_us / std::max(c.bytes(rows) / read / 1e3, c.flops(rows) / roof.gflops / 1e3);
  return p;
}

std::string to_json(const std::vector<Point>& points, const Ceilings& roof, std::string_view backend, int threads) {
  JsonWriter out(2);
  out.begin_object().member("backend", backend).member("threads", threads);
  out.member("cached_read_gbps", roof.cached_gbps).member("memory_read_gbps", roof.memory_gbps);
  out.member("fma_gflops", roof.gflops).key("points").begin_array();
  for (const Point& p : points) {
    out.begin_object().member("verb", p.verb).member("shape", p.shape).member("rows", p.rows);
    out.member("median_us", p.median_us).member("best_us", p.best_us).member("gbps", p.gbps);
    out.member("of_read", p.of_read).member("gflops", p.gflops).member("of_peak", p.of_peak);
    out.member("over_floor", p.over_floor).member("error", p.error).end_object();
  }
  out.end_array().end_object();
  return std::move(out).text();
}

Result<int> run(const Options& options) {
  TRY_ASSIGN(std::unique_ptr<Backend> backend, make_backend({options.device, options.threads, options.isa}));
  TRY_ASSIGN(std::unique_ptr<Backend> ref, make_backend({"ref", 1, "auto"}));
  Ceilings roof;
  int threads;
  {
    TRY_ASSIGN(std::unique_ptr<ThreadPool> pool, ThreadPool::create(options.threads));
    threads = pool->size();
    roof = measure_ceilings(*pool, kCachedSet);
  }
  std::FILE* log = options.json ? stderr : stdout;
  fmt::print(log, "{}, {} threads: read {:.1f} GB/s cached ({} MB), {:.1f} GB/s from memory; {:.1f} GFLOP/s\n",
             backend->name(), threads, roof.cached_gbps, kCachedSet >> 20, roof.memory_gbps, roof.gflops);
  fmt::print(log, "{:14} {:34} {:>5} {:>10} {:>10} {:>7} {:>6} {:>8} {:>6} {:>7} {:>8}\n", "verb", "shape", "rows",
             "median us", "best us", "GB/s", "read", "GFLOP/s", "peak", "x floor", "error");
  std::vector<Point> points;
  bool right = true;
  const int64_t most = *std::ranges::max_element(options.rows);
  for (const VerbCase& c : verb_cases()) {
    if (c.name.find(options.only) == std::string::npos) continue;
    const std::unique_ptr<Verb> verb = c.make(*backend, c.cached ? kCachedSet : kMemorySet, most);
    for (int64_t rows : options.rows) {
      Point p = measure(c, *verb, rows, roof, options);
      p.error = check(c, *verb, rows, *ref);
      right = right && p.error <= kMaxError;
      fmt::print(log, "{:14} {:34} {:5} {:10.1f} {:10.1f} {:7.1f} {:5.0f}% {:8.1f} {:5.0f}% {:7.2f} {:8.1e}\n", p.verb,
                 p.shape, p.rows, p.median_us, p.best_us, p.gbps, 100 * p.of_read, p.gflops, 100 * p.of_peak,
                 p.over_floor, p.error);
      std::fflush(log);
      points.push_back(p);
    }
  }
  if (options.json) fmt::print("{}\n", to_json(points, roof, backend->name(), threads));
  if (!right)
    std::fprintf(stderr, "op_bench: results differ from ref by more than %g of the largest value\n", kMaxError);
  return right ? 0 : 1;
}

int main(int argc, char** argv) {
  CLI::App app(
      "Times the verbs of a backend with random data, compares them with this machine's roofs, checks the results.");
  Options options;
  app.add_option("--device", options.device, "the backend")->check(CLI::IsMember({"cpu"}))->capture_default_str();
  app.add_option("--isa", options.isa, "auto, portable or avx512")->capture_default_str();
  app.add_option("--threads", options.threads, "0: one per core")->capture_default_str();
  app.add_option("--op", options.only, "only verbs whose name contains this");
  app.add_option("--rows", options.rows, "row counts")->delimiter(',')->check(CLI::Range(1, 4096));
  app.add_option("--seconds", options.seconds, "time per verb and row count")->check(CLI::Range(0.0, 60.0));
  app.add_flag("--json", options.json, "results as JSON on stdout, the table on stderr");
  CLI11_PARSE(app, argc, argv);
  const Result<int> status = run(options);
  if (status.ok()) return *status;
  std::fprintf(stderr, "op_bench: %s\n", status.error().message.c_str());
  return 1;
}

}  // namespace
}  // namespace ddtree::bench

int main(int argc, char** argv) { return ddtree::bench::main(argc, argv); }
