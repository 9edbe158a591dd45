// Bounded: a value in double and a bound on the error of any sensible float32 computation of it.
//
// u = 2⁻²⁴ is float32's unit roundoff. A sum of n products, in any order and grouping, has |error| ≤ n·u·Σ|a||b| at
// first order; when the roundings are independent the sum of errors grows with √n, and 8·√n·u·Σ|a||b| is exceeded with
// a probability below 10⁻¹³ per sum (Hoeffding: 2·exp(−8²/2)). gamma(n) is the smaller of the two. Errors of inputs
// pass on by the derivative. Second-order terms are left out: they are below 10⁻⁴ of the first.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace ddtree::ops {

inline constexpr double kUnit = 0x1p-24;

struct Bounded {
  double value = 0;
  double error = 0;
};
using BoundedVector = std::vector<Bounded>;

inline double gamma(int64_t n) {
  const auto count = static_cast<double>(n);
  return kUnit * std::min(count, 8 * std::sqrt(count));
}

inline BoundedVector exact(const std::vector<float>& x) {
  BoundedVector y;
  for (float v : x) y.push_back({v, 0});
  return y;
}

inline Bounded operator+(Bounded a, Bounded b) {
  const double value = a.value + b.value;
  return {value, a.error + b.error + kUnit * std::fabs(value)};
}
inline Bounded operator*(Bounded a, Bounded b) {
  const double value = a.value * b.value;
  return {value, std::fabs(a.value) * b.error + std::fabs(b.value) * a.error + kUnit * std::fabs(value)};
}
inline Bounded operator*(double exact_factor, Bounded b) { return Bounded{exact_factor, 0} * b; }

// 1 / (1 + e⁻ˣ): slope ≤ s(1 − s) ≤ s; exp, the sum and the quotient may each cost a few ulps, and the exponential of a
// rounded argument |x|·u.
inline Bounded sigmoid(Bounded x) {
  const double s = 1 / (1 + std::exp(-x.value));
  return {s, s * std::min(1.0, 1.1 * (1 - s) + 1e-3) * x.error + s * kUnit * (8 + std::fabs(x.value))};
}
inline Bounded silu(Bounded x) {
  const Bounded s = sigmoid({x.value, 0});
  const double value = x.value * s.value;
  return {value, 1.1 * x.error + std::fabs(x.value) * s.error + kUnit * std::fabs(value)};  // |silu'| < 1.1
}

// Σ w·x over a dense row of exact weights. Two more roundings a term: INT4 may be scaled per weight or per group sum.
inline Bounded dot(const double* w, const Bounded* x, int64_t n) {
  double value = 0, carried = 0, magnitude = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double product = w[i] * x[i].value;
    value += product;
    magnitude += std::fabs(product);
    carried += std::fabs(w[i]) * x[i].error;
  }
  return {value, carried + (gamma(n) + 2 * kUnit) * magnitude};
}

// x / √(mean x² + eps) ⊙ gain, in place.
inline void normalise(Bounded* x, const std::vector<double>& gain, double eps) {
  const auto n = static_cast<int64_t>(gain.size());
  double sum = 0, carried = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum += x[i].value * x[i].value;
    carried += 2 * std::fabs(x[i].value) * x[i].error;
  }
  const double mean = sum / static_cast<double>(n) + eps;
  const double factor = 1 / std::sqrt(mean);
  const double relative = 0.5 * (carried + gamma(n) * sum) / static_cast<double>(n) / mean + 4 * kUnit;
  for (int64_t i = 0; i < n; ++i) {
    const double value = x[i].value * factor * gain[i];
    x[i] = {value, x[i].error * factor * std::fabs(gain[i]) + std::fabs(value) * (relative + 2 * kUnit)};
  }
}

}  // namespace ddtree::ops
