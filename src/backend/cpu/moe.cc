#include "backend/cpu/moe.h"

namespace ddtree::cpu {

void Moe::route(TensorView x, const CpuMoe& w) {
  const int64_t rows = x.rows(), experts = w.router.out, k = w.choice.top_k();
  float* logits = logits_.grow(rows * experts);
  int32_t* expert = expert_.grow(rows * k);
  float* choice = choice_.grow(rows * k);
  const GemmJob job = {&w.router, {x.as<float>(), x.row_stride, nullptr}, {logits, experts, nullptr}, rows};
  runner_.run(
      multiply_adds({&job, 1}),
      [&](Part part) {
        runner_.linear({&job, 1}, part);
      },
      [&](Part part) {
        for (int64_t r = part.begin(rows); r < part.end(rows); ++r)
          w.choice.route({logits + r * experts, static_cast<size_t>(experts)},
                         threads_[static_cast<size_t>(part.index)], expert + r * k, choice + r * k);
      });
}

// Sorts the (row, expert) pairs by expert, rows ascending.
void Moe::gather(int64_t rows, const CpuMoe& w) {
  const int64_t k = w.choice.top_k(), pairs = rows * k;
  begin_.assign(w.experts.size() + 1, 0);
  const int32_t* expert = expert_.data();
  for (int64_t i = 0; i < pairs; ++i) ++begin_[static_cast<size_t>(expert[i]) + 1];
  for (size_t e = 1; e < begin_.size(); ++e) begin_[e] += begin_[e - 1];
  next_.assign(begin_.begin(), begin_.end() - 1);
  int32_t* row = row_.grow(pairs);
  float* weight = weight_.grow(pairs);
  for (int64_t i = 0; i < pairs; ++i) {
    const int32_t at = next_[static_cast<size_t>(expert[i])]++;
    row[at] = static_cast<int32_t>(i / k);
    weight[at] = choice_.data()[i];
  }
}

int64_t Moe::run(TensorView out, TensorView x, const CpuMoe& w) {
  const int64_t rows = x.rows();
  CHECK_EQ(out.rows(), rows);
  route(x, w);
  gather(rows, w);
  int64_t bytes = w.router.bytes();
  const int64_t inter = w.experts[0].inter;
  float* hidden = hidden_.grow(rows * w.choice.top_k() * inter);
  up_jobs_.clear();
  down_jobs_.clear();
  const auto add_jobs = [&](const Mlp& mlp, const int32_t* index, float* h, const float* weight, int64_t n) {
    up_jobs_.push_back({&mlp.gate_up, {x.as<float>(), x.row_stride, index}, {h, mlp.inter, nullptr}, n, mlp.inter});
    down_jobs_.push_back({&mlp.down, {h, mlp.inter, nullptr}, {out.as<float>(), out.row_stride, index}, weight, n});
    bytes += mlp.bytes();
  };
  for (size_t e = 0; e < w.experts.size(); ++e) {
    const int32_t at = begin_[e], n = begin_[e + 1] - at;
    if (n > 0) add_jobs(w.experts[e], row_.data() + at, hidden + at * inter, weight_.data() + at, n);
  }
  if (w.shared) add_jobs(*w.shared, nullptr, shared_hidden_.grow(rows * w.shared->inter), nullptr, rows);
  runner_.run(
      multiply_adds(up_jobs_), [&](Part part) { runner_.gate_up(up_jobs_, part); },
      [&](Part part) {
        runner_.down(down_jobs_, {out.as<float>(), out.row_stride, nullptr}, rows, part);
      });
  return bytes;
}

}  // namespace ddtree::cpu
