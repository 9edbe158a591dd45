// What a product's epilogue does with its sums.
#pragma once

#include <cstdint>

namespace ddtree::cuda {

enum class GemmStore : uint8_t {
  kBf16,
  kF32,
  kSilu,  // outputs 2i and 2i + 1 are gate and up of value i: silu(gate) · up in bf16, at column i
  kRope,  // a group's outputs up to plain_rows as kBf16; the others in pairs, turned, to `rotated`
  kHead,  // fp32 logits to `data` unless null; per row and 64 outputs, the largest and the sum of exp
};

// Strides in elements of the type stored.
struct GemmOutput {
  GemmStore store = GemmStore::kBf16;
  void* data = nullptr;
  int64_t row_stride = 0, group_stride = 0;

  // kRope. `turns`: cosine and sine of each pair of each row, [rows, pairs] float2. Pair i goes to columns 2i, 2i + 1,
  // or i and i + pairs.
  void* rotated = nullptr;
  int64_t rotated_row_stride = 0, rotated_group_stride = 0;
  const void* turns = nullptr;
  int32_t plain_rows = 0;
  bool interleaved = true;

  // kHead: [rows, row blocks] rank_key() of the largest logit; Σ exp(logit − largest).
  uint64_t* best = nullptr;
  float* sums = nullptr;
};

}  // namespace ddtree::cuda
