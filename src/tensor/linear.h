// Linear: the weights of y = W·x in checkpoint order, as views into a mapped file or into memory.
#pragma once

#include "tensor/tensor_view.h"

namespace ddtree {

// Plain:     weight [out, in] BF16, F16 or F32; scale empty; group_size 0.
// Quantised: weight I32 [out, in/8], element i of a row in bits 4·(i mod 8) of word i/8 as value + 8;
//            scale [out, in/group_size] BF16, F16 or F32; w = (nibble − 8) · scale (compressed-tensors pack-quantized).
struct Linear {
  TensorView weight;
  TensorView scale;
  int32_t group_size = 0;
  int64_t out = 0;
  int64_t in = 0;

  bool empty() const { return weight.empty(); }
};

// Rows [first, first + count), as views.
inline Linear slice_rows(const Linear& linear, int64_t first, int64_t count) {
  Linear slice = linear;
  slice.weight = linear.weight.slice(first, count);
  if (!linear.scale.empty()) slice.scale = linear.scale.slice(first, count);
  slice.out = count;
  return slice;
}

}  // namespace ddtree
