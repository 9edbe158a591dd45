// The `trees` verb of op_bench: building the draft trees of all streams, laying out their rows, walking them and
// committing, on the GPU and by way of the host.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/spec/trees.h"
#include "backend/cuda/spec/walk.h"
#include "op_bench/verb.h"
#include "support/gpu_timing.h"

namespace ddtree::cuda {
namespace {

constexpr int kInputs = 16;  // different candidates that a graph's repetitions go through
constexpr int32_t kRanks = 64;
constexpr int32_t kStepRows = 1088;  // of a pass
constexpr std::array<int32_t, 2> kSlots = {7, 15};
constexpr std::array<int32_t, 4> kStreams = {1, 4, 10, 16};
constexpr int32_t kLayers = 61, kRowBytes = 1152;  // of Kimi K2.6's cache

// A drafter's candidates: sure at first, less so with every slot, tails as a power of the rank. In float32, as logits
// less their log-sum.
struct Candidates {
  std::vector<float> value;  // [streams, slots, kRanks]
  std::vector<int32_t> id;
};

Candidates random_candidates(int32_t streams, int32_t slots, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> unit(0, 1);
  Candidates c;
  for (int32_t row = 0; row < streams * slots; ++row) {
    const double slot = row % slots, top = std::min(0.97, 0.95 * std::pow(0.93, slot) * (0.6 + 0.6 * unit(random)));
    std::vector<double> p(kRanks);
    for (size_t r = 0; r < p.size(); ++r)
      p[r] = r == 0 ? top : (1 - top) * 0.5 * (0.5 + unit(random)) / std::pow(static_cast<double>(r), 1.3);
    std::sort(p.begin(), p.end(), std::greater<>());
    const auto lse = static_cast<float>(20 + 4 * unit(random));
    for (int32_t r = 0; r < kRanks; ++r) {
      const auto logit = static_cast<float>(std::log(p[static_cast<size_t>(r)]) + static_cast<double>(lse));
      c.value.push_back(logit - lse);
      c.id.push_back(r * 2000 + row);
    }
  }
  return c;
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

struct Point {
  int32_t streams, slots, budget;
  double build_us = 0, lay_out_us = 0, walk_us = 0, copy_us = 0;
  double host_us = 0;        // build_tree, links and ancestors of all streams, one core
  double round_trip_us = 0;  // candidates to the host, host_us, trees to the device
  double nodes = 0;          // mean a stream
};

// Everything on the device for one point.
struct Problem {
  std::vector<Candidates> inputs;
  Buffer value, id, requests, trees, rows, state, walked, caches, cache_table;
  DraftTable table(const Point& p, int i) const {
    const int64_t at = static_cast<int64_t>(i) * p.streams * p.slots * kRanks;
    return {static_cast<const float*>(value.data()) + at, static_cast<const int32_t*>(id.data()) + at, nullptr, p.slots,
            kRanks};
  }
  TreeArrays arrays(const Point& p, int i) const {
    return tree_arrays(static_cast<uint8_t*>(trees.data()) + i * tree_arrays_bytes(p.streams), p.streams);
  }
};

template <class T>
Result<Buffer> upload(const std::vector<T>& host, const char* what) {
  TRY_ASSIGN(Buffer buffer, allocate_device(static_cast<int64_t>(host.size() * sizeof(T)), what));
  TRY(cuda_status(cudaMemcpy(buffer.data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), what));
  return buffer;
}

Result<Problem> make_problem(const Point& p, uint64_t seed) {
  Problem problem;
  std::vector<float> value;
  std::vector<int32_t> id;
  for (int i = 0; i < kInputs; ++i) {
    problem.inputs.push_back(random_candidates(p.streams, p.slots, seed + static_cast<uint64_t>(i)));
    value.insert(value.end(), problem.inputs.back().value.begin(), problem.inputs.back().value.end());
    id.insert(id.end(), problem.inputs.back().id.begin(), problem.inputs.back().id.end());
  }
  TRY_ASSIGN(problem.value, upload(value, "candidates"));
  TRY_ASSIGN(problem.id, upload(id, "candidates"));
  TRY_ASSIGN(problem.requests,
             upload(std::vector<TreeRequest>(static_cast<size_t>(p.streams), {7, p.budget, kMaxDepth, kRanks, 0}),
                    "requests"));
  TRY_ASSIGN(problem.trees, allocate_device(kInputs * tree_arrays_bytes(p.streams), "trees"));
  return problem;
}

Tree host_tree(const Candidates& c, const Point& p, int32_t stream) {
  Tree tree;
  const int64_t at = static_cast<int64_t>(stream) * p.slots * kRanks;
  build_tree({p.slots, kRanks, c.value.data() + at, c.id.data() + at}, 7, p.budget, {}, tree);
  return tree;
}

// The device's trees of one input equal the host's.
Status check(const Problem& problem, const Point& p, int input) {
  const TreeArrays device = problem.arrays(p, input);
  for (int32_t s = 0; s < p.streams; ++s) {
    const Tree want = host_tree(problem.inputs[static_cast<size_t>(input)], p, s);
    const int64_t at = static_cast<int64_t>(s) * kMaxRows;
    const auto n = static_cast<size_t>(want.rows);
    int32_t rows = 0;
    Tree got;
    const auto fetch = [](void* to, const void* from, size_t bytes) {
      return cuda_status(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "download");
    };
    TRY(fetch(&rows, device.rows + s, 4));
    TRY(fetch(got.token.data(), device.token + at, n * 4));
    TRY(fetch(got.parent.data(), device.parent + at, n * 2));
    TRY(fetch(got.first_child.data(), device.first_child + at, n * 2));
    TRY(fetch(got.next_sibling.data(), device.next_sibling + at, n * 2));
    TRY(fetch(got.log_prob.data(), device.log_prob + at, n * 8));
    const auto same = [n](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), n * sizeof(a[0])) == 0;
    };
    if (rows != want.rows || !same(got.token, want.token) || !same(got.parent, want.parent) ||
        !same(got.first_child, want.first_child) || !same(got.next_sibling, want.next_sibling) ||
        !same(got.log_prob, want.log_prob))
      return Error{Code::kCorrupt, "trees: stream " + std::to_string(s) + " of budget " + std::to_string(p.budget) +
                                       " differs from the host's"};
  }
  return {};
}

// What a host needs to give the pass its trees, one after another in one block.
struct HostBlock {
  std::vector<Tree> trees;
  std::vector<AncestorWords> ancestors;
  std::vector<int32_t> position;
};

void build_on_host(const Candidates& c, const Point& p, HostBlock& out) {
  for (int32_t s = 0; s < p.streams; ++s) {
    Tree& tree = out.trees[static_cast<size_t>(s)];
    const int64_t at = static_cast<int64_t>(s) * p.slots * kRanks;
    build_tree({p.slots, kRanks, c.value.data() + at, c.id.data() + at}, 7, p.budget, {}, tree);
    const size_t row = static_cast<size_t>(s) * kMaxRows, n = static_cast<size_t>(tree.rows);
    ancestor_words(tree, std::span(out.ancestors).subspan(row, n));
    for (size_t i = 0; i < n; ++i) out.position[row + i] = 1000 + tree.depth[i];
  }
}

// Pinned memory of one direction.
struct Pinned {
  void* data = nullptr;
  Pinned() = default;
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { cudaFreeHost(data); }
  Status allocate(size_t bytes) { return cuda_status(cudaMallocHost(&data, bytes), "pinned memory"); }
};

Status time_host(const Problem& problem, Point& p, cudaStream_t stream) {
  const size_t rows = static_cast<size_t>(p.streams) * kMaxRows;
  HostBlock block{std::vector<Tree>(static_cast<size_t>(p.streams)), std::vector<AncestorWords>(rows),
                  std::vector<int32_t>(rows)};
  std::vector<double> host, trip;
  const size_t candidates = problem.inputs[0].value.size() * 4, sent = rows * 64;
  Pinned down, up;
  TRY(down.allocate(2 * candidates));
  TRY(up.allocate(sent));
  TRY_ASSIGN(const Buffer target, allocate_device(static_cast<int64_t>(sent), "trees of the host"));
  for (int round = 0; round < 5; ++round)
    for (int i = 0; i < kInputs; ++i) {
      const double begin = now_us();
      build_on_host(problem.inputs[static_cast<size_t>(i)], p, block);
      host.push_back(now_us() - begin);

      const double start = now_us();
      const DraftTable table = problem.table(p, i);
      TRY(cuda_status(cudaMemcpyAsync(down.data, table.value, candidates, cudaMemcpyDeviceToHost, stream), "down"));
      TRY(cuda_status(cudaMemcpyAsync(static_cast<uint8_t*>(down.data) + candidates, table.id, candidates,
                                      cudaMemcpyDeviceToHost, stream),
                      "down"));
      TRY(cuda_status(cudaStreamSynchronize(stream), "down"));
      build_on_host(problem.inputs[static_cast<size_t>(i)], p, block);
      uint8_t* at = static_cast<uint8_t*>(up.data);
      for (size_t s = 0; s < block.trees.size(); ++s) {
        const Tree& tree = block.trees[s];
        const auto n = static_cast<size_t>(tree.rows);
        const auto pack = [&at](const void* from, size_t bytes) { std::memcpy(at, from, bytes), at += bytes; };
        pack(tree.token.data(), n * 4), pack(tree.first_child.data(), n * 2), pack(tree.next_sibling.data(), n * 2);
        pack(&block.position[s * kMaxRows], n * 4), pack(&block.ancestors[s * kMaxRows], n * 32);
      }
      const auto bytes = static_cast<size_t>(at - static_cast<uint8_t*>(up.data));
      TRY(cuda_status(cudaMemcpyAsync(target.data(), up.data, bytes, cudaMemcpyHostToDevice, stream), "up"));
      TRY(cuda_status(cudaStreamSynchronize(stream), "up"));
      trip.push_back(now_us() - start);
      p.nodes += static_cast<double>(block.trees[0].nodes()) / (5 * kInputs);
    }
  p.host_us = median(host);
  p.round_trip_us = median(trip);
  return {};
}

// Lays out, walks and commits what was built; the target says what the tree's first children hold, two slots of three.
Status time_rest(Problem& problem, const BenchOptions& options, Point& p, cudaStream_t stream) {
  const int32_t n = p.streams, rows = std::max(kStepRows, n), pages = 16;
  std::vector<int32_t> context, scratch, table, page_count(static_cast<size_t>(n), pages);
  for (int32_t s = 0; s < n; ++s) {
    context.push_back(500 + s);
    scratch.push_back(n * pages * 64 + s * kMaxRows);
    for (int32_t i = 0; i < pages; ++i) table.push_back(s * pages + i);
  }
  TRY_ASSIGN(const Buffer contexts, upload(context, "walk"));
  TRY_ASSIGN(const Buffer scratches, upload(scratch, "walk"));
  TRY_ASSIGN(const Buffer tables, upload(table, "walk"));
  TRY_ASSIGN(const Buffer counts, upload(page_count, "walk"));
  TRY_ASSIGN(problem.rows, allocate_device(static_cast<int64_t>(rows) * 48 + 4096 * 4, "rows"));
  uint8_t* at = static_cast<uint8_t*>(problem.rows.data());
  TreeRows out;
  out.ancestors = reinterpret_cast<AncestorWords*>(at);
  out.token = reinterpret_cast<int32_t*>(at + static_cast<int64_t>(rows) * 32);
  out.position = out.token + rows, out.kv_row = out.position + rows, out.first_row = out.kv_row + rows;
  const auto ints = [](const Buffer& b) { return static_cast<const int32_t*>(b.data()); };
  const auto lay_out = [&](int i, cudaStream_t s) {
    return run_lay_out_trees({problem.arrays(p, i), ints(contexts), ints(scratches), 0, out, n, rows}, s);
  };
  TRY_ASSIGN(p.lay_out_us, time_burst(lay_out, kInputs, options.samples, stream));
  TRY(lay_out(0, stream));
  TRY(cuda_status(cudaStreamSynchronize(stream), "lay out"));

  std::vector<int32_t> first(static_cast<size_t>(n) + 1), sampled(static_cast<size_t>(rows), -1);
  TRY(cuda_status(cudaMemcpy(first.data(), out.first_row, first.size() * 4, cudaMemcpyDeviceToHost), "rows"));
  for (int32_t s = 0; s < n; ++s) {
    const Tree tree = host_tree(problem.inputs[0], p, s);
    for (int32_t i = 0; i < first[static_cast<size_t>(s) + 1] - first[static_cast<size_t>(s)]; ++i) {
      const int16_t child = tree.first_child[static_cast<size_t>(i)];
      if (child > 0 && i % 3 != 2)
        sampled[static_cast<size_t>(first[static_cast<size_t>(s)] + i)] = tree.token[static_cast<size_t>(child)];
    }
  }
  TRY_ASSIGN(const Buffer samples, upload(sampled, "walk"));
  TRY_ASSIGN(problem.walked, allocate_device(static_cast<int64_t>(n) * (16 + kMaxAccepted * 16), "walk"));
  auto* scalar = static_cast<int32_t*>(problem.walked.data());
  WalkResult walked{scalar,
                    scalar + n,
                    scalar + 4 * n,
                    scalar + (4 + kMaxAccepted) * n,
                    scalar + 2 * n,
                    scalar + 3 * n,
                    reinterpret_cast<RowCopy*>(scalar + (4 + 2 * kMaxAccepted) * n)};
  const auto walk_all = [&](int, cudaStream_t s) {
    return run_walk({problem.arrays(p, 0), out.first_row, ints(samples), ints(contexts), ints(scratches), ints(tables),
                     ints(counts), pages, walked, n},
                    s);
  };
  TRY_ASSIGN(p.walk_us, time_burst(walk_all, kInputs, options.samples, stream));

  const int64_t cache_rows = static_cast<int64_t>(n) * (pages * 64 + kMaxRows);
  TRY_ASSIGN(problem.caches, allocate_device(kLayers * cache_rows * kRowBytes, "caches"));
  std::vector<void*> caches;
  for (int32_t l = 0; l < kLayers; ++l)
    caches.push_back(static_cast<uint8_t*>(problem.caches.data()) + l * cache_rows * kRowBytes);
  TRY_ASSIGN(problem.cache_table, upload(caches, "caches"));
  const auto copy = [&](int, cudaStream_t s) {
    return run_copy_rows({static_cast<void* const*>(problem.cache_table.data()), kLayers, cache_rows, kRowBytes,
                          walked.copies, n * kMaxAccepted},
                         s);
  };
  TRY_ASSIGN(p.copy_us, time_burst(copy, kInputs, options.samples, stream));
  return {};
}

void report(const Point& p, JsonWriter& out) {
  std::printf("%4d %4d %4d %6.1f | %8.2f %8.2f %8.2f %8.2f | %9.1f %9.1f\n", p.slots, p.streams, p.budget, p.nodes,
              p.build_us, p.lay_out_us, p.walk_us, p.copy_us, p.host_us, p.round_trip_us);
  std::fflush(stdout);
  out.begin_object().member("slots", p.slots).member("k", kRanks).member("streams", p.streams);
  out.member("budget", p.budget).member("nodes", p.nodes).member("build_us", p.build_us);
  out.member("lay_out_us", p.lay_out_us).member("walk_us", p.walk_us).member("copy_rows_us", p.copy_us);
  out.member("host_us", p.host_us).member("host_round_trip_us", p.round_trip_us).end_object();
}

}  // namespace

Status bench_trees(const BenchOptions& options, const BenchDevice& device, JsonWriter& out) {
  std::printf("# trees: %d candidates a slot; µs of graph replays, and of one host core\n", kRanks);
  std::printf("slot strm budg  nodes |    build  lay out     walk copy KV  | host all  round trip\n");
  out.begin_object().member("verb", "trees").key("points").begin_array();
  const std::vector<int32_t> budgets =
      options.rows.empty() ? std::vector<int32_t>{8, 16, 32, 64, 128, 255} : options.rows;
  for (const int32_t slots : kSlots)
    for (const int32_t streams : kStreams)
      for (const int32_t budget : budgets) {
        Point p{streams, slots, std::min<int32_t>(budget, kMaxNodes)};
        TRY_ASSIGN(Problem problem, make_problem(p, options.seed));
        const auto build = [&](int i, cudaStream_t s) {
          return run_build_trees(p.streams, problem.table(p, i),
                                 static_cast<const TreeRequest*>(problem.requests.data()), problem.arrays(p, i), s);
        };
        TRY_ASSIGN(p.build_us, time_burst(build, kInputs, options.samples, device.stream));
        for (int i = 0; i < kInputs; ++i) TRY(check(problem, p, i));
        TRY(time_host(problem, p, device.stream));
        TRY(time_rest(problem, options, p, device.stream));
        report(p, out);
      }
  out.end_array().end_object();
  return {};
}

}  // namespace ddtree::cuda
