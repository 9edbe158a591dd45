// Elementwise kernels, norms and vocabulary reductions. Elementwise ones treat every lane alike; the sums run over
// 4 × 16 lanes in a fixed tree, whatever the other rows are.
#pragma once

#include "backend/cpu/kernels.h"

namespace ddtree::cpu {

// e^x, about 1 unit in the last place; 0 below −87.3, infinite above 88.8; exact at 0.
template <class V>
typename V::Float exp(typename V::Float x) {
  using Float = typename V::Float;
  constexpr float kLowest = -87.3f, kHighest = 89.0f;
  const Float clamped = V::min(V::set(kHighest), V::max(V::set(kLowest), x));
  const Float n = V::round(V::mul(clamped, V::set(1.44269504f)));
  // ln 2 in two parts, the first with few bits, so that n · part is exact.
  Float r = V::fma(n, V::set(-0.693359375f), clamped);
  r = V::fma(n, V::set(2.12194440e-4f), r);
  Float p = V::set(1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = V::fma(p, r, V::set(c));
  return V::zero_below(x, kLowest, V::times_power_of_two(p, n));
}

template <class V>
class PointwiseKernel {
 public:
  static void silu_mul(float* out, const float* gate, const float* up, int64_t n) {
    for_lanes(n, [&](auto load, auto store, int64_t i) {
      const Float g = load(gate + i);
      const Float sigmoid_inverse = V::add(V::set(1), exp<V>(V::sub(V::zero(), g)));
      store(out + i, V::mul(V::div(g, sigmoid_inverse), load(up + i)));
    });
  }
  static void add(float* y, const float* x, int64_t n) {
    for_lanes(n, [&](auto load, auto store, int64_t i) { store(y + i, V::add(load(y + i), load(x + i))); });
  }
  static void add_scaled(float* y, const float* x, float a, int64_t n) {
    for_lanes(n, [&](auto load, auto store, int64_t i) { store(y + i, V::fma(V::set(a), load(x + i), load(y + i))); });
  }
  static void scale(float* out, const float* x, float a, int64_t n) {
    for_lanes(n, [&](auto load, auto store, int64_t i) { store(out + i, V::mul(V::set(a), load(x + i))); });
  }
  static void rms_norm(float* out, const float* x, const float* gain, int64_t n, float eps) {
    const float squares = sum_lanes(x, n, 0, [](Float v, Float sum) { return V::fma(v, v, sum); });
    const float inverse = 1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps);
    for_lanes(n, [&](auto load, auto store, int64_t i) {
      store(out + i, V::mul(V::mul(load(x + i), V::set(inverse)), load(gain + i)));
    });
  }

  static void log_sum(const float* v, int64_t n, float* max, float* sum) {
    Float top = V::set(-__builtin_inff());
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) top = V::max(top, V::load(v + i));
    if (i < n) top = V::max(top, V::load(v + i, n - i, -__builtin_inff()));
    const float m = V::max_lane(top);
    *max = m;
    *sum =
        sum_lanes(v, n, -__builtin_inff(), [m](Float x, Float s) { return V::add(s, exp<V>(V::sub(x, V::set(m)))); });
  }
  static int64_t select_greater(const float* v, int64_t n, float threshold, int32_t* index) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += kLanes) {
      const Float x = i + kLanes <= n ? V::load(v + i) : V::load(v + i, n - i, -__builtin_inff());
      for (uint32_t mask = V::greater(x, V::set(threshold)); mask != 0; mask &= mask - 1)
        index[found++] = static_cast<int32_t>(i) + __builtin_ctz(mask);
    }
    return found;
  }

 private:
  using Float = typename V::Float;

  // f(load, store, i) for every vector of n lanes, the last one partial.
  template <class F>
  static void for_lanes(int64_t n, F f) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      f([](const float* p) { return V::load(p); }, [](float* p, Float v) { V::store(p, v); }, i);
    if (i < n)
      f([n, i](const float* p) { return V::load(p, n - i, 0); }, [n, i](float* p, Float v) { V::store(p, v, n - i); },
        i);
  }
  // Four sums of 16 lanes, vectors dealt in turn; then a fixed tree. Lanes past n hold `fill`.
  template <class F>
  static float sum_lanes(const float* x, int64_t n, float fill, F f) {
    Float s[4] = {V::zero(), V::zero(), V::zero(), V::zero()};
    int64_t i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
      for (int j = 0; j < 4; ++j) s[j] = f(V::load(x + i + j * kLanes), s[j]);
    for (int j = 0; i < n; ++j, i += kLanes)
      s[j] = f(n - i >= kLanes ? V::load(x + i) : V::load(x + i, n - i, fill), s[j]);
    return V::sum(V::add(V::add(s[0], s[2]), V::add(s[1], s[3])));
  }
};

}  // namespace ddtree::cpu
