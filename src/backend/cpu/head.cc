#include "backend/cpu/head.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "backend/cpu/rank_key.h"
#include "base/checked.h"

namespace ddtree::cpu {

void TopK::reset(int64_t k) {
  k_ = k;
  size_ = seen_ = 0;
  open_ = true;
  keys_.resize(static_cast<size_t>(2 * k + kSlack + kBlock));
}

void TopK::add(const KernelTable& kernels, const float* v, int32_t first_index, int64_t n) {
  if (k_ == 0) return;
  for (int64_t i = 0, step; i < n; i += step) {
    // A threshold from as many values as are compared with it lets about k of them pass.
    step = std::min(n - i, std::max(seen_, 2 * k_));
    add_part(kernels, v + i, first_index + static_cast<int32_t>(i), step);
    seen_ += step;
  }
}

void TopK::add_part(const KernelTable& kernels, const float* v, int32_t first_index, int64_t n) {
  uint64_t* key = keys_.data() + size_;
  if (open_) {
    for (int32_t i = 0; i < n; ++i) key[i] = rank_key(v[i], first_index + i);
    size_ += n;
  } else {
    int32_t candidate[kBlock];
    const int64_t found = kernels.select_greater(v, n, threshold_, candidate);
    for (int64_t i = 0; i < found; ++i) key[i] = rank_key(v[candidate[i]], first_index + candidate[i]);
    size_ += found;
  }
  if (open_ || size_ >= 2 * k_ + kSlack) keep_best();
}

void TopK::keep_best() {
  if (size_ <= k_) return;
  std::nth_element(keys_.begin(), keys_.begin() + k_ - 1, keys_.begin() + size_, std::greater<>());
  size_ = k_;
  threshold_ = rank_value(keys_[static_cast<size_t>(k_ - 1)]);
  open_ = std::isnan(threshold_);
}

std::span<const uint64_t> TopK::keys() {
  keep_best();
  return {keys_.data(), static_cast<size_t>(size_)};
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
    for (int64_t r = 0; r < rows; ++r) t.top[static_cast<size_t>(r)].reset(k);
  }
  runner_.run(
      rows * w.out * w.in,
      [&](Part part) {
        for (int64_t b = part.begin(blocks); b < part.end(blocks); ++b)
          run_block(out, x, w, b, threads_[static_cast<size_t>(part.index)]);
      },
      [&](Part part) {
        for (int64_t r = part.begin(rows); r < part.end(rows); ++r)
          merge_row(out, r, blocks, threads_[static_cast<size_t>(part.index)].merged);
      });
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

void Head::merge_row(const HeadResult& out, int64_t row, int64_t blocks, std::vector<uint64_t>& keys) {
  keys.clear();
  for (Thread& t : threads_) {
    const std::span<const uint64_t> part = t.top[static_cast<size_t>(row)].keys();
    keys.insert(keys.end(), part.begin(), part.end());
  }
  const int64_t k = out.top_value.row_elements();
  CHECK_LE(k, static_cast<int64_t>(keys.size()));
  std::partial_sort(keys.begin(), keys.begin() + k, keys.end(), std::greater<>());
  for (int64_t i = 0; i < k; ++i) {
    out.top_value.row<float>(row)[i] = rank_value(keys[static_cast<size_t>(i)]);
    out.top_id.row<int32_t>(row)[i] = rank_index(keys[static_cast<size_t>(i)]);
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
