// WeightMaker: weights in checkpoint order, made in memory; it owns what the views point at.
#pragma once

#include <deque>
#include <vector>

#include "backend/weights.h"
#include "random.h"

namespace ddtree::ops {

// How a matrix is stored. group 0: plain, of `dtype`; else INT4 with scales of `dtype`.
struct Storage {
  DType dtype = DType::kBF16;
  int32_t group = 0;
};
inline constexpr Storage kF32{DType::kF32, 0};
inline constexpr Storage kF16{DType::kF16, 0};
inline constexpr Storage kBF16{DType::kBF16, 0};
inline constexpr Storage kInt4{DType::kBF16, 32};

class WeightMaker {
 public:
  explicit WeightMaker(uint64_t seed) : random_(seed) {}

  Linear linear(int64_t out, int64_t in, Storage storage = kBF16);          // outputs of about the inputs' size
  Linear plain(int64_t out, int64_t in, const std::vector<float>& values);  // F32, these values
  Linear packed(int64_t out, int64_t in, std::vector<uint32_t> words, const std::vector<float>& scales,
                Storage storage);
  TensorView gain(int64_t n, DType dtype = DType::kBF16);  // around 1
  TensorView vector(const std::vector<float>& values, DType dtype = DType::kF32);
  MlpSource mlp(int64_t hidden, int64_t inter, Storage storage = kBF16);
  Random& random() { return random_; }

 private:
  TensorView store(std::vector<float> values, DType dtype, std::initializer_list<int64_t> dims);

  Random random_;
  std::deque<std::vector<std::byte>> owned_;
};

// Element [o, i] of the matrix that a Linear stands for, straight from the format's definition.
double weight_value(const Linear& w, int64_t o, int64_t i);
double vector_value(const TensorView& v, int64_t i);

// θ = base^(−2i/dim).
Rope make_rope(int32_t dim, bool interleaved, double base = 50000, float amplitude = 1);

}  // namespace ddtree::ops
