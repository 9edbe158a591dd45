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

void RopeTables::prepare(int table) {
  Table& t = tables_[static_cast<size_t>(table)];
  if (t.ready) return;
  const size_t half = t.rope.inv_freq.size();
  t.cos.resize(positions_.size() * half);
  t.sin.resize(positions_.size() * half);
  for (size_t row = 0; row < positions_.size(); ++row) {
    for (size_t i = 0; i < half; ++i) {
      const double angle = rope_angle(t.rope, positions_[row], i);
      t.cos[row * half + i] = static_cast<float>(std::cos(angle) * static_cast<double>(t.rope.amplitude));
      t.sin[row * half + i] = static_cast<float>(std::sin(angle) * static_cast<double>(t.rope.amplitude));
    }
  }
  t.ready = true;
}

void RopeTables::rotate(int table, int64_t row, float* x) const {
  const Table& t = tables_[static_cast<size_t>(table)];
  const auto half = static_cast<int64_t>(t.rope.inv_freq.size());
  const float* cos = t.cos.data() + row * half;
  const float* sin = t.sin.data() + row * half;
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
