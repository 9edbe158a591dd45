#include "backend/cpu/rope.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace ddtree::cpu {

int RopeTables::add(const Rope& rope) {
  const auto same = [&](const Table& t) {
    return t.rope.dim == rope.dim && t.rope.interleaved == rope.interleaved && t.rope.amplitude == rope.amplitude &&
           t.rope.inv_freq == rope.inv_freq;
  };
  const auto at = std::ranges::find_if(tables_, same);
  if (at != tables_.end()) return static_cast<int>(at - tables_.begin());
  tables_.push_back({rope, false, {}, {}});
  return static_cast<int>(tables_.size()) - 1;
}

void RopeTables::stage(std::span<const int32_t> positions) {
  positions_ = positions;
  for (Table& table : tables_) table.ready = false;
}

void RopeTables::append(const Rope& rope, int32_t position, std::vector<float>& values) {
  const auto amplitude = static_cast<double>(rope.amplitude);
  const size_t half = rope.inv_freq.size();
  for (size_t i = 0; i < half; ++i)
    values.push_back(static_cast<float>(std::cos(double{rope_angle(rope, position, i)}) * amplitude));
  for (size_t i = 0; i < half; ++i)
    values.push_back(static_cast<float>(std::sin(double{rope_angle(rope, position, i)}) * amplitude));
}

void RopeTables::prepare(int table) {
  Table& t = tables_[static_cast<size_t>(table)];
  if (t.ready || t.rope.dim == 0 || positions_.empty()) return;
  const int32_t last = std::ranges::max(positions_);
  for (auto p = static_cast<int32_t>(t.kept.size()) / t.rope.dim; p <= std::min(last, kKept - 1); ++p)
    append(t.rope, p, t.kept);
  t.later.clear();
  if (last >= kKept)
    for (int32_t position : positions_) append(t.rope, position, t.later);
  t.ready = true;
}

void RopeTables::rotate(int table, int64_t row, float* x) const {
  const Table& t = tables_[static_cast<size_t>(table)];
  const int64_t half = t.rope.dim / 2, position = positions_[static_cast<size_t>(row)];
  const float* cos = position < kKept ? t.kept.data() + position * t.rope.dim : t.later.data() + row * t.rope.dim;
  const float* sin = cos + half;
  const int64_t step = t.rope.interleaved ? 2 : 1, pair = t.rope.interleaved ? 1 : half;
  for (int64_t i = 0; i < half; ++i) {
    float& a = x[i * step];
    float& b = x[i * step + pair];
    const float a0 = a, b0 = b;
    a = a0 * cos[i] - b0 * sin[i];
    b = a0 * sin[i] + b0 * cos[i];
  }
}

}  // namespace ddtree::cpu
