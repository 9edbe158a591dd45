// The scalar arithmetic that the oracle's verbs share, in double throughout.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "backend/ref/matrix.h"
#include "backend/weights.h"

namespace ddtree::ref {

// Eight partial sums: one chain of additions would make the tests wait for its latency.
template <class A, class B>
double dot(const A* a, const B* b, int64_t n) {
  double part[8] = {};
  for (int64_t i = 0; i + 8 <= n; i += 8)
    for (int64_t j = 0; j < 8; ++j) part[j] += static_cast<double>(a[i + j]) * static_cast<double>(b[i + j]);
  double sum = 0;
  for (int64_t i = n - n % 8; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  for (double p : part) sum += p;
  return sum;
}

// W · x.
template <class X>
std::vector<double> multiply(const Matrix& w, const X* x) {
  std::vector<double> y(w.out);
  for (int64_t o = 0; o < w.out; ++o) y[o] = dot(w.row(o), x, w.in);
  return y;
}

// y = x / √(mean x² + eps) ⊙ gain; y may be x.
template <class X, class Y>
void normalise(Y* y, const X* x, const float* gain, double eps, int64_t n) {
  const double factor = 1 / std::sqrt(dot(x, x, n) / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<Y>(static_cast<double>(x[i]) * factor * gain[i]);
}

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
inline double silu(double x) { return x * sigmoid(x); }

// Rotates the first rope.dim values of x.
inline void rotate(double* x, const Rope& rope, int32_t position) {
  const int32_t half = rope.dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double angle = rope_angle(rope, position, i);
    const double c = std::cos(angle) * rope.amplitude;
    const double s = std::sin(angle) * rope.amplitude;
    double& a = rope.interleaved ? x[2 * i] : x[i];
    double& b = rope.interleaved ? x[2 * i + 1] : x[i + half];
    const double a0 = a;
    a = a0 * c - b * s;
    b = a0 * s + b * c;
  }
}

}  // namespace ddtree::ref
