// Guarded: a tensor in a backend's memory between 64 guard bytes, filled with NaN, so that a write outside it and an
// element never written both show.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/backend.h"

namespace ddtree::ops {

class Guarded {
 public:
  Guarded(Backend& backend, DType dtype, std::initializer_list<int64_t> dims) {
    const int64_t bytes = TensorView(nullptr, dtype, dims).bytes();
    Result<Buffer> buffer = backend.allocate(bytes + 2 * kGuard, "test tensor");
    CHECK(buffer.ok());
    buffer_ = *std::move(buffer);
    std::memset(buffer_.data(), kPoison, static_cast<size_t>(buffer_.bytes()));
    view_ = buffer_.view(dtype, dims, kGuard);
    std::memset(view_.data, 0xff, static_cast<size_t>(bytes));  // NaN as float, −1 as integer
  }
  Guarded(Backend& backend, std::initializer_list<int64_t> dims, const std::vector<float>& values)
      : Guarded(backend, DType::kF32, dims) {
    CHECK_EQ(static_cast<int64_t>(values.size()), view_.elements());
    std::ranges::copy(values, view_.as<float>());
  }

  TensorView view() const { return view_; }
  std::vector<float> values() const { return {view_.as<float>(), view_.as<float>() + view_.elements()}; }
  void expect_guards() const {
    const auto* bytes = static_cast<const unsigned char*>(buffer_.data());
    const auto intact = [](unsigned char b) { return b == kPoison; };
    EXPECT_TRUE(std::all_of(bytes, bytes + kGuard, intact)) << "written before the tensor";
    EXPECT_TRUE(std::all_of(bytes + buffer_.bytes() - kGuard, bytes + buffer_.bytes(), intact))
        << "written after the tensor";
  }

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr unsigned char kPoison = 0xa5;

  Buffer buffer_;
  TensorView view_;
};

// Floats as bits, so that NaN equals itself and −0 differs from 0.
inline bool same_bits(const float* a, const float* b, int64_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0;  // memcmp takes no null, not even for nothing
}
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && same_bits(a.data(), b.data(), static_cast<int64_t>(a.size()));
}

}  // namespace ddtree::ops
