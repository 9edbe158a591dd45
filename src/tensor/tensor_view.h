// TensorView: a non-owning, trivially copyable view of a row-major tensor in host or device memory.
// Only the slowest dimension may be strided (row_stride); the others are dense.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "base/check.h"
#include "base/dtype.h"

namespace ddtree {

struct TensorView {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dim = {};
  int64_t row_stride = 0;  // elements between consecutive indices of dim[0]

  TensorView() = default;
  TensorView(void* data, DType dtype, std::initializer_list<int64_t> dims) : data(data), dtype(dtype) {
    CHECK_LE(dims.size(), static_cast<size_t>(kMaxRank));
    for (int64_t d : dims) dim[rank++] = d;
    row_stride = row_elements();
  }

  bool empty() const { return data == nullptr; }
  int64_t rows() const { return rank == 0 ? 0 : dim[0]; }
  int64_t row_elements() const {
    int64_t n = 1;
    for (int i = 1; i < rank; ++i) n *= dim[i];
    return n;
  }
  int64_t elements() const { return rank == 0 ? 0 : dim[0] * row_elements(); }
  int64_t bytes() const { return elements() * dtype_size(dtype); }  // of the elements, not of gaps between rows

  // Rows [first, first + count).
  TensorView slice(int64_t first, int64_t count) const {
    CHECK(first >= 0 && count >= 0 && first + count <= rows());
    TensorView v = *this;
    v.data = static_cast<char*>(data) + first * row_stride * dtype_size(dtype);
    v.dim[0] = count;
    return v;
  }

  template <class T>
  T* as() const {
    CHECK_EQ(static_cast<int64_t>(sizeof(T)), dtype_size(dtype));
    return static_cast<T*>(data);
  }
  template <class T>
  T* row(int64_t i) const {
    return as<T>() + i * row_stride;
  }
};

// "F32 [3, 256]", for messages.
std::string describe(const TensorView& view);

}  // namespace ddtree
