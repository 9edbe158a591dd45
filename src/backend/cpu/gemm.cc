#include "backend/cpu/gemm.h"

#include <algorithm>

#include "base/checked.h"

namespace ddtree::cpu {
namespace {

constexpr int64_t kBlockOutputs = kBlockPanels * kLanes;

int64_t multiply_adds(const PackedMatrix& w, int64_t rows) { return rows * w.panels() * kLanes * w.in; }

}  // namespace

int64_t multiply_adds(std::span<const GemmJob> jobs) {
  int64_t sum = 0;
  for (const GemmJob& job : jobs) sum += multiply_adds(*job.w, job.rows);
  return sum;
}

GemmRunner::GemmRunner(const KernelTable& kernels, ThreadPool& pool)
    : kernels_(kernels), pool_(pool), threads_(static_cast<size_t>(pool.size())) {
  for (Thread& t : threads_) t.tile.grow(kRowTile * kBlockOutputs);
}

// The thread's x: the job's rows, or normalised copies.
void GemmRunner::point_at_rows(Thread& t, const GemmJob& job, int64_t row, int64_t rows) {
  const int64_t in = job.w->in;
  float* normed = job.norm != nullptr ? t.normed.grow(rows * in) : nullptr;
  for (int64_t i = 0; i < rows; ++i) {
    t.x[i] = job.x[row + i];
    if (normed == nullptr) continue;
    kernels_.rms_norm(normed + i * in, t.x[i], job.norm, in, job.eps);
    t.x[i] = normed + i * in;
  }
}

template <class F>
void GemmRunner::split(std::span<const GemmJob> jobs, int panels, Part part, F f) {
  const int64_t total = multiply_adds(jobs);
  Thread& thread = threads_[static_cast<size_t>(part.index)];
  int64_t before = 0;
  for (const GemmJob& job : jobs) {
    const int64_t work = multiply_adds(*job.w, job.rows);
    if (work == 0) continue;
    // The job's pairs of (row tile, unit) that begin inside this part of all work.
    const int64_t units = ceil_div(job.w->panels(), panels), tiles = ceil_div(job.rows, kRowTile);
    const int64_t pairs = units * tiles;
    const auto pair_at = [&](int64_t work_point) {
      const int64_t inside = std::clamp<int64_t>(work_point - before, 0, work);
      return (inside * pairs + work / 2) / work;
    };
    const int64_t begin = pair_at(part.begin(total)), end = pair_at(part.end(total));
    before += work;
    for (int64_t pair = begin; pair < end;) {
      const int64_t tile = pair / units;
      const int64_t stop = std::min(end, (tile + 1) * units);
      const int64_t row = tile * kRowTile, rows = std::min<int64_t>(kRowTile, job.rows - row);
      point_at_rows(thread, job, row, rows);
      f(thread, job, row, rows, (pair - tile * units) * panels,
        std::min((stop - tile * units) * panels, job.w->panels()));
      pair = stop;
    }
  }
}

void GemmRunner::linear(std::span<const GemmJob> jobs, Part part) {
  split(jobs, 1, part, [&](Thread& t, const GemmJob& job, int64_t row, int64_t rows, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < rows; ++i) t.y[i] = job.y[row + i];
    kernels_.gemm({job.w, begin, end, t.x, t.y, static_cast<int32_t>(rows), 0});
  });
}

float* GemmRunner::tile_rows(Thread& t, int64_t rows) {
  for (int64_t i = 0; i < rows; ++i) t.y[i] = t.tile.data() + i * kBlockOutputs;
  return t.tile.data();
}

void GemmRunner::gate_up(std::span<const GemmJob> jobs, Part part) {
  split(jobs, kBlockPanels, part,
        [&](Thread& t, const GemmJob& job, int64_t row, int64_t rows, int64_t begin, int64_t end) {
          const float* tile = tile_rows(t, rows);
          for (int64_t p = begin; p < end; p += kBlockPanels) {
            const int64_t stop = std::min<int64_t>(p + kBlockPanels, end);
            kernels_.gemm({job.w, p, stop, t.x, t.y, static_cast<int32_t>(rows), p});
            const int64_t first = p / 2 * kLanes, half = (stop - p) / 2 * kLanes;
            const int64_t n = std::min(half, job.inter - first);
            for (int64_t i = 0; i < rows; ++i) {
              const float* gate = tile + i * kBlockOutputs;
              kernels_.silu_mul(job.y[row + i] + first, gate, gate + half, n);
            }
          }
        });
}

void GemmRunner::down(std::span<const DownJob> jobs, Rows out, int64_t rows, Part part) {
  if (rows == 0) return;
  const PackedMatrix& first = *jobs[0].w;
  Thread& t = threads_[static_cast<size_t>(part.index)];
  const int64_t begin = part.begin(first.panels()), end = part.end(first.panels());
  if (begin == end) return;
  const int64_t outputs = std::min(end * kLanes, first.out) - begin * kLanes;
  for (int64_t r = 0; r < rows; ++r) std::fill_n(out[r] + begin * kLanes, outputs, 0.0f);
  for (const DownJob& job : jobs) {
    for (int64_t row = 0; row < job.rows; row += kRowTile) {
      const int64_t tile_size = std::min<int64_t>(kRowTile, job.rows - row);
      for (int64_t i = 0; i < tile_size; ++i) t.x[i] = job.x[row + i];
      const float* tile = tile_rows(t, tile_size);
      for (int64_t p = begin, stop; p < end; p = stop) {
        stop = std::min<int64_t>(p / kBlockPanels * kBlockPanels + kBlockPanels, end);
        kernels_.gemm({job.w, p, stop, t.x, t.y, static_cast<int32_t>(tile_size), p});
        const int64_t n = std::min(stop * kLanes, job.w->out) - p * kLanes;
        for (int64_t i = 0; i < tile_size; ++i)
          kernels_.add_scaled(job.out[row + i] + p * kLanes, tile + i * kBlockOutputs,
                              job.weight != nullptr ? job.weight[row + i] : 1.0f, n);
      }
    }
  }
}

}  // namespace ddtree::cpu
