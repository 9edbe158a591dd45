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

// y[i] = W·x[i] (or the gated unit of it) for `rows` rows. With a norm, x[i] is normalised on the way in: by every
// thread that reads it, which costs less than to let all wait for one.
struct GemmJob {
  const PackedMatrix* w = nullptr;
  Rows x, y;
  int64_t rows = 0;
  int64_t inter = 0;            // gate_up only: values per row of y
  const float* norm = nullptr;  // gain [in]
  float eps = 0;
};

// One expert's part of a weighted sum: weight[i] · (W·x[i]) for row out[row[i]]; no weights: 1.
struct DownJob {
  const PackedMatrix* w = nullptr;
  Rows x, out;
  const float* weight = nullptr;
  int64_t rows = 0;
};

// One thread's part of a stage.
struct Part {
  int64_t index = 0, count = 1;

  int64_t begin(int64_t n) const { return n * index / count; }
  int64_t end(int64_t n) const { return n * (index + 1) / count; }
};

int64_t multiply_adds(std::span<const GemmJob> jobs);

class GemmRunner {
 public:
  GemmRunner(const KernelTable& kernels, ThreadPool& pool);

  // One part of a stage each. linear: y = W·x.
  void linear(std::span<const GemmJob> jobs, Part part);
  // w from pack_gate_up: y[i] = silu(gate·x[i]) ⊙ (up·x[i]).
  void gate_up(std::span<const GemmJob> jobs, Part part);
  // The jobs' sum, added in their order, to all `rows` of `out`.
  void down(std::span<const DownJob> jobs, Rows out, int64_t rows, Part part);

  // Calls each stage(part) on all threads, stage after stage; on the caller alone if `work`, in multiply-adds or what
  // takes as long, is too little to be worth a region.
  template <class... Stages>
  void run(int64_t work, Stages&&... stages) {
    if (pool_.size() == 1 || work < kWorthARegion) return (stages(Part()), ...);
    pool_.run([&stages, count = pool_.size()](int share) { stages(Part{share, count}); }...);
  }
  // Calls f(begin, end) for contiguous ranges of [0, n) likewise.
  template <class F>
  void ranges(int64_t n, int64_t work, F f) {
    run(n > 1 ? work : 0, [&](Part part) {
      if (part.begin(n) < part.end(n)) f(part.begin(n), part.end(n));
    });
  }

  const KernelTable& kernels() const { return kernels_; }
  int threads() const { return pool_.size(); }

 private:
  // A region costs about 0.3 µs; a thread does this many multiply-adds in that time.
  static constexpr int64_t kWorthARegion = 16 * 1024;

  struct Thread {
    const float* x[kRowTile];
    float* y[kRowTile];
    Scratch<float> tile;    // [kRowTile, kBlockPanels · kLanes]
    Scratch<float> normed;  // [kRowTile, in]
  };
  // Calls f for this part of the jobs' (row tile, unit) pairs, shared out evenly by multiply-adds; a job has
  // units(job) of `panels` panels each.
  template <class F>
  void split(std::span<const GemmJob> jobs, int panels, Part part, F f);
  void point_at_rows(Thread& t, const GemmJob& job, int64_t row, int64_t rows);
  float* tile_rows(Thread& t, int64_t rows);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<Thread> threads_;
};

}  // namespace ddtree::cpu
