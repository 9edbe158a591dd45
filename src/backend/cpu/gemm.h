// Runs packed matrices over rows on all threads. Work is split by (matrix, rows, outputs); every output is computed
// whole by one thread in its one order, so the split never shows in the results.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/host_memory.h"
#include "backend/cpu/kernels.h"
#include "base/thread_pool.h"

namespace ddtree::cpu {

// Rows of floats: base + stride · (index ? index[i] : i).
struct Rows {
  float* base = nullptr;
  int64_t stride = 0;
  const int32_t* index = nullptr;

  float* operator[](int64_t i) const { return base + stride * (index != nullptr ? index[i] : i); }
};

// y[i] = W·x[i] (or the gated unit of it) for `rows` rows.
struct GemmJob {
  const PackedMatrix* w = nullptr;
  Rows x, y;
  int64_t rows = 0;
  int64_t inter = 0;  // gate_up only: values per row of y
};

// One expert's part of a weighted sum: out[row[i]] += weight[i] · (W·x[i]); no weights: 1.
struct DownJob {
  const PackedMatrix* w = nullptr;
  Rows x, out;
  const float* weight = nullptr;
  int64_t rows = 0;
};

class GemmRunner {
 public:
  GemmRunner(const KernelTable& kernels, ThreadPool& pool);

  void linear(std::span<const GemmJob> jobs);
  // w from pack_gate_up: y[i] = silu(gate·x[i]) ⊙ (up·x[i]).
  void gate_up(std::span<const GemmJob> jobs);
  // Adds the jobs in order; all have the same `out`. `out` rows must be set before.
  void down(std::span<const DownJob> jobs);

  // Calls f(begin, end) for contiguous ranges of [0, n) on the threads; on the caller alone if `work`, in multiply-adds
  // or what takes as long, is too little to be worth a region.
  template <class F>
  void ranges(int64_t n, int64_t work, F f) {
    shares(n > 1 ? work : 0, [&](int64_t share, int64_t count) {
      const int64_t begin = n * share / count, end = n * (share + 1) / count;
      if (begin < end) f(begin, end);
    });
  }
  // Calls f(share, shares).
  template <class F>
  void shares(int64_t work, F f) {
    if (pool_.size() == 1 || work < kWorthARegion) return f(0, 1);
    const int64_t count = pool_.size();
    pool_.run([&](int share) { f(share, count); });
  }

  const KernelTable& kernels() const { return kernels_; }
  int threads() const { return pool_.size(); }

 private:
  // A region costs about 0.3 µs; a thread does this many multiply-adds in that time.
  static constexpr int64_t kWorthARegion = 16 * 1024;

  struct Thread {
    const float* x[kRowTile];
    float* y[kRowTile];
    Scratch<float> tile;  // [kRowTile, kBlockPanels · kLanes]
  };
  // Splits the jobs' (row tile, unit) pairs evenly by multiply-adds; a job has units(job) of `panels` panels each.
  template <class F>
  void split(std::span<const GemmJob> jobs, int panels, F f);
  float* tile_rows(Thread& t, int64_t rows);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<Thread> threads_;
};

}  // namespace ddtree::cpu
