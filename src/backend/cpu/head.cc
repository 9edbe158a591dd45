#include "backend/cpu/head.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked.h"

namespace ddtree::cpu {

void TopK::reset(int64_t k, float* values, int32_t* ids) {
  k_ = k;
  size_ = 0;
  values_ = values;
  ids_ = ids;
}

bool TopK::before(float a, float b) const { return a > b || (std::isnan(b) && !std::isnan(a)); }

void TopK::insert(float v, int32_t id) {
  int64_t at = size_ < k_ ? size_++ : k_ - 1;
  for (; at > 0 && before(v, values_[at - 1]); --at) {
    values_[at] = values_[at - 1];
    ids_[at] = ids_[at - 1];
  }
  values_[at] = v;
  ids_[at] = id;
}

void TopK::add(const KernelTable& kernels, const float* v, int32_t first_id, int64_t n) {
  if (k_ == 0) return;
  int64_t i = 0;
  for (; i < n && (size_ < k_ || std::isnan(values_[k_ - 1])); ++i)
    if (size_ < k_ || !std::isnan(v[i])) insert(v[i], first_id + static_cast<int32_t>(i));
  for (; (i = kernels.find_greater(v, i, n, values_[k_ - 1])) < n; ++i)
    insert(v[i], first_id + static_cast<int32_t>(i));
}

void Head::run(const HeadResult& out, TensorView x, const PackedMatrix& w) {
  for (int64_t row = 0; row < x.rows(); row += kRowTile) {
    const int64_t rows = std::min<int64_t>(kRowTile, x.rows() - row);
    HeadResult part = out;
    part.top_value = out.top_value.slice(row, rows);
    part.top_id = out.top_id.slice(row, rows);
    part.lse = out.lse.slice(row, rows);
    if (!out.logits.empty()) part.logits = out.logits.slice(row, rows);
    run_rows(part, x.slice(row, rows), w);
  }
}

void Head::run_rows(const HeadResult& out, TensorView x, const PackedMatrix& w) {
  const int64_t rows = x.rows(), k = out.top_value.row_elements();
  const int64_t blocks = ceil_div(w.out, kBlock);
  max_.grow(rows * blocks);
  sum_.grow(rows * blocks);
  for (Thread& t : threads_) {  // a thread without work must leave nothing to merge
    t.top.resize(kRowTile);
    t.logits.grow(kRowTile * kBlock);
    float* values = t.value.grow(kRowTile * k);
    int32_t* ids = t.id.grow(kRowTile * k);
    for (int64_t r = 0; r < rows; ++r) t.top[static_cast<size_t>(r)].reset(k, values + r * k, ids + r * k);
  }
  runner_.shares(rows * w.out * w.in, [&](int64_t share, int64_t count) {
    for (int64_t b = blocks * share / count; b < blocks * (share + 1) / count; ++b)
      run_block(out, x, w, b, threads_[static_cast<size_t>(share)]);
  });
  for (int64_t r = 0; r < rows; ++r) merge_row(out, r, blocks);
}

void Head::run_block(const HeadResult& out, TensorView x, const PackedMatrix& w, int64_t block, Thread& t) {
  const int64_t rows = x.rows(), blocks = ceil_div(w.out, kBlock);
  const int64_t first = block * kBlock, n = std::min(kBlock, w.out - first);
  const float* inputs[kRowTile];
  float* outputs[kRowTile];
  for (int64_t r = 0; r < rows; ++r) {
    inputs[r] = x.row<float>(r);
    outputs[r] = out.logits.empty() ? t.logits.data() + r * kBlock : out.logits.row<float>(r) + first;
  }
  const int64_t panel = first / kLanes;
  runner_.kernels().gemm({&w, panel, panel + ceil_div(n, kLanes), inputs, outputs, static_cast<int32_t>(rows), panel});
  for (int64_t r = 0; r < rows; ++r) {
    runner_.kernels().log_sum(outputs[r], n, max_.data() + r * blocks + block, sum_.data() + r * blocks + block);
    t.top[static_cast<size_t>(r)].add(runner_.kernels(), outputs[r], static_cast<int32_t>(first), n);
  }
}

// Threads hold ascending parts of the vocabulary: adding their lists in turn keeps ties in order.
void Head::merge_row(const HeadResult& out, int64_t row, int64_t blocks) {
  const int64_t k = out.top_value.row_elements();
  float* values = out.top_value.row<float>(row);
  int32_t* ids = out.top_id.row<int32_t>(row);
  std::vector<int64_t> at(threads_.size());
  for (int64_t i = 0; i < k; ++i) {
    size_t best = threads_.size();
    const auto value = [&](size_t t) { return threads_[t].value.data()[row * k + at[t]]; };
    for (size_t t = 0; t < threads_.size(); ++t) {
      if (at[t] == threads_[t].top[static_cast<size_t>(row)].size()) continue;
      if (best == threads_.size() || value(t) > value(best) || (std::isnan(value(best)) && !std::isnan(value(t))))
        best = t;
    }
    CHECK_LT(best, threads_.size());
    values[i] = value(best);
    ids[i] = threads_[best].id.data()[row * k + at[best]];
    ++at[best];
  }
  const float* max = max_.data() + row * blocks;
  const float* sum = sum_.data() + row * blocks;
  float largest = max[0];
  for (int64_t b = 1; b < blocks; ++b) largest = std::max(largest, max[b]);
  double total = 0;
  for (int64_t b = 0; b < blocks; ++b)
    if (max[b] != -std::numeric_limits<float>::infinity())
      total += static_cast<double>(sum[b]) * std::exp(static_cast<double>(max[b]) - largest);
  *out.lse.row<float>(row) = std::isinf(largest) ? largest : static_cast<float>(largest + std::log(total));
}

}  // namespace ddtree::cpu
