// Reproducible numbers: the same on every machine and standard library.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <numeric>
#include <vector>

namespace ddtree::ops {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  Random(uint64_t seed, uint64_t stream) : state_(seed * 0x9e3779b97f4a7c15u ^ (stream + 1) * 0xd1342543de82ef95u) {}

  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  float normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
  }
  std::vector<float> normals(int64_t n, float deviation = 1) {
    std::vector<float> v(n);
    for (float& x : v) x = normal() * deviation;
    return v;
  }
  std::vector<int32_t> permutation(int32_t n) {
    std::vector<int32_t> p(n);
    std::iota(p.begin(), p.end(), 0);
    for (int32_t i = n - 1; i > 0; --i) std::swap(p[i], p[below(i + 1)]);
    return p;
  }

 private:
  uint64_t state_;
};

}  // namespace ddtree::ops
