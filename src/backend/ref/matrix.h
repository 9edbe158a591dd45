// Weights as the oracle keeps them: float32, [out, in], INT4 as q · scale in float32 (never rounded to bfloat16).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "tensor/buffer.h"
#include "tensor/linear.h"

namespace ddtree::ref {

struct Matrix {
  Buffer storage;
  int64_t out = 0;
  int64_t in = 0;

  bool empty() const { return out == 0; }
  int64_t bytes() const { return out * in * static_cast<int64_t>(sizeof(float)); }
  const float* row(int64_t o) const { return static_cast<const float*>(storage.data()) + o * in; }
};

// Host memory whose every float is NaN, so that a value read before it is written shows in the result.
Result<Buffer> allocate_poisoned(int64_t bytes, std::string_view what);

Result<Matrix> load_matrix(std::span<const Linear> parts);  // checked parts, stacked along out
Result<Matrix> load_matrix(const Linear& w);                // an empty Linear gives an empty Matrix
std::vector<float> load_vector(const TensorView& values);   // an empty view gives an empty vector

}  // namespace ddtree::ref
