// The verbs `attend` (MLA, a tree a stream) and `draft_attend` (a drafter's block) of op_bench.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>

#include "backend/cuda/attention/attend.h"
#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "base/bf16.h"
#include "op_bench/verb.h"
#include "support/gpu_timing.h"
#include "support/random_dense.h"
#include "support/random_experts.h"

namespace ddtree::cuda {
namespace {

constexpr double kMaxError = 5e-3;                  // two roundings to bf16 (weights, out), each 1.7e-3 of the norm
constexpr double kPeakFlops = 790e12;               // dense bf16 on random data, H200
constexpr int64_t kPoolBytes = int64_t{768} << 20;  // of pages that launches take turns with: many times the L2
constexpr int32_t kTreeRows = 256;                  // scratch rows of a stream
constexpr int kScale = 300;                         // scores of random_weight values spread by about 1.5

struct Point {
  int32_t context = 0, rows = 0, streams = 0;
};

template <class T>
Result<Buffer> upload(const std::vector<T>& host) {
  const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
  TRY_ASSIGN(Buffer buffer, allocate_device(std::max<int64_t>(bytes, 16), "attention's inputs"));
  TRY(cuda_status(cudaMemcpy(buffer.data(), host.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
                  "upload"));
  return Result<Buffer>(std::move(buffer));
}

// A random tree: parents before children, at most kMaxDepth deep.
std::vector<AncestorWords> random_tree(int32_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<AncestorWords> ancestors(static_cast<size_t>(rows));
  std::vector<int32_t> depth(static_cast<size_t>(rows));
  for (int32_t i = 0; i < rows; ++i) {
    const auto at = static_cast<size_t>(i);
    if (i > 0) {
      size_t parent = random() % at;
      while (depth[parent] >= kMaxDepth) parent = random() % at;
      depth[at] = depth[parent] + 1;
      ancestors[at] = ancestors[parent];
    }
    ancestors[at][at / 64] |= uint64_t{1} << (at % 64);
  }
  return ancestors;
}

int32_t depth_of(const AncestorWords& words) {
  return std::accumulate(words.begin(), words.end(), -1,
                         [](int32_t n, uint64_t w) { return n + __builtin_popcountll(w); });
}

// One layer's cache and the inputs of one point.
struct Problem {
  AttendSpec spec;
  Point point;
  int32_t width = 0, pages = 0, repetitions = 0;
  std::vector<AttendSegment> segments;
  std::vector<int32_t> page_table, position, kv_row;
  std::vector<AncestorWords> ancestors;
  int32_t stream_pages = 0;
  AttendPlan plan;
  Buffer q, out, workspace, d_position, d_kv_row, d_ancestors, d_segments, d_pages;

  AttendArgs args(const Buffer& cache, int repetition) const {
    AttendArgs a;
    a.q = q.data();
    a.cache = cache.data();
    a.cache_rows = int64_t{pages} * kPageRows + int64_t{point.streams} * kTreeRows;
    a.position = static_cast<const int32_t*>(d_position.data());
    a.kv_row = static_cast<const int32_t*>(d_kv_row.data());
    a.ancestors = static_cast<const AncestorWords*>(d_ancestors.data());
    a.segments = static_cast<const AttendSegment*>(d_segments.data());
    a.pages = static_cast<const int32_t*>(d_pages.data()) + int64_t{repetition} * point.streams * stream_pages;
    a.segment_count = point.streams;
    a.rows = point.rows * point.streams;
    a.out = out.data();
    a.workspace = workspace.data();
    return a;
  }
};

Status place_rows(Problem& p, uint64_t seed) {
  const bool tree = p.spec.mask == AttendSpec::Mask::kTree;
  for (int32_t s = 0; s < p.point.streams; ++s) {
    p.segments.push_back({s * p.point.rows, p.point.rows, p.point.context, tree ? 1 : 0, s * p.stream_pages});
    const std::vector<AncestorWords> ancestors = random_tree(p.point.rows, seed + static_cast<uint64_t>(s));
    for (int32_t i = 0; i < p.point.rows; ++i) {
      p.ancestors.push_back(ancestors[static_cast<size_t>(i)]);
      p.position.push_back(p.point.context + (tree ? depth_of(p.ancestors.back()) : i));
      p.kv_row.push_back(p.pages * kPageRows + s * kTreeRows + i);
    }
  }
  // Every repetition has pages of its own, as far as the pool goes, in random places.
  std::vector<int32_t> order(static_cast<size_t>(p.pages));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  p.page_table.resize(static_cast<size_t>(p.repetitions * p.point.streams * p.stream_pages));
  for (size_t i = 0; i < p.page_table.size(); ++i) p.page_table[i] = order[i % order.size()];
  TRY_ASSIGN(p.d_position, upload(p.position));
  TRY_ASSIGN(p.d_kv_row, upload(p.kv_row));
  TRY_ASSIGN(p.d_ancestors, upload(p.ancestors));
  TRY_ASSIGN(p.d_segments, upload(p.segments));
  TRY_ASSIGN(p.d_pages, upload(p.page_table));
  return {};
}

Result<Problem> make_problem(const AttendSpec& spec, const AttendDevice& device, const Point& point, int32_t width,
                             int32_t pages, uint64_t seed, cudaStream_t stream) {
  Problem p;
  p.spec = spec;
  p.point = point;
  p.width = width;
  p.pages = pages;
  p.stream_pages = (point.context + kPageRows - 1) / kPageRows;
  p.repetitions = std::max(3, std::min(24, pages / std::max(1, p.stream_pages * point.streams)));
  TRY(place_rows(p, seed));
  const int64_t rows = int64_t{point.rows} * point.streams;
  TRY_ASSIGN(p.q, random_matrix(rows, int64_t{spec.heads} * spec.qk_dim, seed + 1, stream));
  TRY_ASSIGN(p.out, allocate_device(rows * spec.heads * spec.v_dim * 2, "outputs"));
  p.plan = plan_attend(spec, device, p.segments);
  TRY_ASSIGN(p.workspace, allocate_device(std::max<int64_t>(p.plan.workspace_bytes, 256), "workspace"));
  return Result<Problem>(std::move(p));
}

// Cache rows of the keys that a row sees in repetition 0.
std::vector<int64_t> visible_keys(const Problem& p, int32_t row) {
  const int32_t s = row / p.point.rows, own = row % p.point.rows;
  std::vector<int64_t> keys;
  for (int32_t j = 0; j < p.point.context; ++j)
    keys.push_back(int64_t{p.page_table[static_cast<size_t>(s * p.stream_pages + j / kPageRows)]} * kPageRows +
                   j % kPageRows);
  const AncestorWords& words = p.ancestors[static_cast<size_t>(row)];
  for (int32_t i = 0; i < p.point.rows; ++i)
    if (p.spec.mask == AttendSpec::Mask::kBlock || (words[static_cast<size_t>(i / 64)] >> (i % 64) & 1) != 0)
      keys.push_back(p.kv_row[static_cast<size_t>(row - own + i)]);
  return keys;
}

// The relative error of one head of one row, from poisoned buffers.
Result<double> check(const Problem& p, const Buffer& cache, uint64_t seed, int32_t row, int32_t head,
                     cudaStream_t stream) {
  TRY(cuda_status(cudaMemset(p.out.data(), 0xff, static_cast<size_t>(p.out.bytes())), "poisoning"));
  TRY(cuda_status(cudaMemset(p.workspace.data(), 0xff, static_cast<size_t>(p.workspace.bytes())), "poisoning"));
  TRY(run_attend(p.spec, p.plan, p.args(cache, 0), stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "attention"));
  const auto qk = static_cast<size_t>(p.spec.qk_dim), v = static_cast<size_t>(p.spec.v_dim);
  const int64_t kv_head = head / (p.spec.heads / p.spec.kv_heads), key_at = kv_head * p.spec.qk_dim;
  const int64_t value_at = qk == v ? int64_t{p.spec.kv_heads} * p.spec.qk_dim + kv_head * p.spec.v_dim : 0;
  const int64_t q_at = (int64_t{row} * p.spec.heads + head) * p.spec.qk_dim;
  std::vector<double> q(qk), sum(v), score;
  for (size_t i = 0; i < qk; ++i) q[i] = bf16_to_f32(random_weight(seed + 1, q_at + static_cast<int64_t>(i)));
  const std::vector<int64_t> keys = visible_keys(p, row);
  for (const int64_t key : keys) {
    double s = 0;
    for (size_t i = 0; i < qk; ++i)
      s += q[i] * bf16_to_f32(random_weight(seed, key * p.width + key_at + static_cast<int64_t>(i)));
    score.push_back(s * p.spec.scale);
  }
  const double top = *std::max_element(score.begin(), score.end());
  double weights = 0;
  for (size_t j = 0; j < keys.size(); ++j) {
    const double w = std::exp(score[j] - top);
    weights += w;
    for (size_t i = 0; i < v; ++i)
      sum[i] += w * bf16_to_f32(random_weight(seed, keys[j] * p.width + value_at + static_cast<int64_t>(i)));
  }
  for (double& x : sum) x /= weights;
  std::vector<uint16_t> got(v);
  const auto out_at = static_cast<size_t>(int64_t{row} * p.spec.heads + head) * v;
  TRY(cuda_status(cudaMemcpy(got.data(), static_cast<uint16_t*>(p.out.data()) + out_at, v * 2, cudaMemcpyDeviceToHost),
                  "download"));
  return relative_error(got, sum);
}

Status bench_point(const BenchOptions& options, const BenchDevice& device, const AttendDevice& limits,
                   const AttendSpec& spec, const Point& point, const Buffer& cache, int32_t width, int32_t pages,
                   const std::string& mode, JsonWriter& out) {
  AttendDevice chosen = limits;
  chosen.wgmma = limits.wgmma && mode == "auto";
  TRY_ASSIGN(const Problem p, make_problem(spec, chosen, point, width, pages, options.seed, device.stream));
  const int32_t rows = point.rows * point.streams;
  double error = 0;
  if (options.check_rows > 0) {
    TRY_ASSIGN(error, check(p, cache, options.seed, rows - 1, spec.heads - 1, device.stream));
  }
  const auto run = [&](int i, cudaStream_t s) { return run_attend(spec, p.plan, p.args(cache, i), s); };
  TRY_ASSIGN(const double us, time_burst(run, p.repetitions, options.samples, device.stream));
  double keys = 0;  // that all rows see
  for (const int32_t position : p.position)
    keys += spec.mask == AttendSpec::Mask::kBlock ? point.context + point.rows : position + 1;
  const double bytes = 2.0 * width * point.streams * (point.context + point.rows);
  const double flops = 2.0 * keys * spec.heads * (spec.qk_dim + spec.v_dim);
  const double floor_us = std::max(bytes / device.read_ceiling_gbps / 1e3, flops / kPeakFlops * 1e6);
  std::printf("%7d %5d %7d %-6s %6d | %9.1f %9.1f %6.2f | %6.0f %7.1f %9.2e\n", point.context, point.rows,
              point.streams, mode.c_str(), p.plan.items, floor_us, us, us / floor_us, bytes / us / 1e3,
              flops / us / 1e6, error);
  std::fflush(stdout);
  out.begin_object().member("context", point.context).member("rows", point.rows).member("streams", point.streams);
  out.member("mode", mode).member("items", p.plan.items).member("bytes", bytes).member("flops", flops);
  out.member("floor_us", floor_us).member("burst_us", us).member("of_floor", us / floor_us);
  out.member("gbps", bytes / us / 1e3).member("tflops", flops / us / 1e6).member("relative_error", error);
  out.end_object();
  if (error < kMaxError) return {};
  return Error{Code::kCorrupt, "attention, context " + std::to_string(point.context) + ", " +
                                   std::to_string(point.rows) + " rows, " + std::to_string(point.streams) +
                                   " streams: relative error " + std::to_string(error) + ", must be below " +
                                   std::to_string(kMaxError)};
}

Status bench_points(const BenchOptions& options, const BenchDevice& device, const AttendSpec& spec,
                    const std::vector<Point>& points, const char* verb, JsonWriter& out) {
  TRY_ASSIGN(AttendDevice limits, attend_device());
  if (options.shared_bytes > 0) limits.shared_bytes = std::min(limits.shared_bytes, options.shared_bytes);
  TRY(check_attend_spec(spec, limits));
  const int32_t width = spec.qk_dim != spec.v_dim ? spec.qk_dim : spec.kv_heads * (spec.qk_dim + spec.v_dim);
  const auto pages = static_cast<int32_t>(kPoolBytes / (int64_t{kPageRows} * width * 2));
  int32_t streams = 1;
  for (const Point& p : points) streams = std::max(streams, p.streams);
  TRY_ASSIGN(const Buffer cache, random_matrix(int64_t{pages} * kPageRows + int64_t{streams} * kTreeRows, width,
                                               options.seed, device.stream));
  std::printf("# %s: heads %d, key heads %d, keys of %d, values of %d\n", verb, spec.heads, spec.kv_heads, spec.qk_dim,
              spec.v_dim);
  std::printf("%7s %5s %7s %-6s %6s | %9s %9s %6s | %6s %7s %9s\n", "context", "rows", "streams", "mode", "items",
              "floor us", "burst us", "ratio", "GB/s", "TFLOP/s", "error");
  out.begin_object().member("verb", verb).member("heads", spec.heads).member("kv_heads", spec.kv_heads);
  out.member("qk_dim", spec.qk_dim).member("v_dim", spec.v_dim).member("peak_flops", kPeakFlops);
  out.key("points").begin_array();
  Status status;
  for (const Point& point : points)
    for (const std::string& mode : options.modes)
      if (status.ok()) status = bench_point(options, device, limits, spec, point, cache, width, pages, mode, out);
  out.end_array().end_object();
  return status;
}

std::vector<Point> points_of(const BenchOptions& options, const std::vector<int32_t>& contexts,
                             const std::vector<int32_t>& rows, const std::vector<int32_t>& streams) {
  std::vector<Point> points;
  for (const int32_t s : options.streams.empty() ? streams : options.streams)
    for (const int32_t c : options.contexts.empty() ? contexts : options.contexts)
      for (const int32_t r : options.rows.empty() ? rows : options.rows)
        points.push_back({c, std::min(r, kTreeRows), s});
  return points;
}

}  // namespace

Status bench_attend(const BenchOptions& options, const BenchDevice& device, JsonWriter& out) {
  const PresetShape& s = options.shape;
  const AttendSpec spec{AttendSpec::Mask::kTree, kScale, s.heads, 1, s.kv_lora + s.rope_dim, s.kv_lora, 0};
  std::vector<Point> points = points_of(options, {1024, 8192, 32768, 131072}, {1, 4, 16, 64, 256}, {1});
  if (options.streams.empty()) {
    const std::vector<Point> more = points_of(options, {1024, 8192, 32768, 131072}, {1, 16}, {4, 16});
    points.insert(points.end(), more.begin(), more.end());
  }
  return bench_points(options, device, spec, points, "attend", out);
}

Status bench_draft_attend(const BenchOptions& options, const BenchDevice& device, JsonWriter& out) {
  const PresetShape& s = options.shape;
  const AttendSpec spec{AttendSpec::Mask::kBlock, kScale, s.draft_heads, s.draft_kv_heads, s.draft_head_dim,
                        s.draft_head_dim,         0};
  return bench_points(options, device, spec, points_of(options, {1024, 8192, 32768}, {s.draft_block, 16}, {1, 16}),
                      "draft_attend", out);
}

}  // namespace ddtree::cuda
