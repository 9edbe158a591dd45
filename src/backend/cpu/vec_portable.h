// Sixteen floats in four 128-bit pieces, for any CPU. The kernels are written once over this interface and
// vec_avx512.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace ddtree::cpu {

struct PortableVec {
  using F4 __attribute__((vector_size(16))) = float;
  using I4 __attribute__((vector_size(16))) = int32_t;
  struct Float {
    F4 q[4];
  };
  struct Bits {
    I4 q[4];
  };
  // Rows (or queries) whose sums with four vectors are worth keeping in registers together.
  static constexpr int kTileRows = 2;

  template <class F>
  static Float each(F f) {
    return {{f(0), f(1), f(2), f(3)}};
  }

  static Float zero() { return set(0); }
  static Float set(float v) {
    const F4 q = {v, v, v, v};
    return {{q, q, q, q}};
  }
  static Float load(const float* p) {
    Float v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  // n < 16 lanes; the others are `fill` and memory beyond p + n is not touched.
  static Float load(const float* p, int64_t n, float fill) {
    Float v = set(fill);
    std::memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
    return v;
  }
  static void store(float* p, Float v) { std::memcpy(p, &v, sizeof v); }
  static void store(float* p, Float v, int64_t n) { std::memcpy(p, &v, static_cast<size_t>(n) * sizeof(float)); }

  static Float add(Float a, Float b) {
    return each([&](int i) { return a.q[i] + b.q[i]; });
  }
  static Float sub(Float a, Float b) {
    return each([&](int i) { return a.q[i] - b.q[i]; });
  }
  static Float mul(Float a, Float b) {
    return each([&](int i) { return a.q[i] * b.q[i]; });
  }
  static Float div(Float a, Float b) {
    return each([&](int i) { return a.q[i] / b.q[i]; });
  }
  static Float fma(Float a, Float b, Float c) {
    return each([&](int i) { return a.q[i] * b.q[i] + c.q[i]; });
  }
  // The second operand where one is NaN.
  static Float max(Float a, Float b) {
    return each([&](int i) { return a.q[i] > b.q[i] ? a.q[i] : b.q[i]; });
  }
  static Float min(Float a, Float b) {
    return each([&](int i) { return a.q[i] < b.q[i] ? a.q[i] : b.q[i]; });
  }
  // v where x ≥ limit (or NaN), else 0.
  static Float zero_below(Float x, float limit, Float v) {
    const F4 bound = {limit, limit, limit, limit};
    return each([&](int i) { return x.q[i] < bound ? F4{} : v.q[i]; });
  }
  // To the nearest integer, ties to even; |n| < 2^22.
  static Float round(Float n) {
    return each([&](int i) {
      // Adding 1.5·2^23 leaves no bits for a fraction: the sum is rounded to nearest even.
      const F4 magic = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
      return (n.q[i] + magic) - magic;
    });
  }
  // v · 2^n for integers n in [−126, 128].
  static Float times_power_of_two(Float v, Float n) {
    return each([&](int i) {
      const I4 exponent = (__builtin_convertvector(n.q[i], I4) + 127) << 23;
      F4 power;
      std::memcpy(&power, &exponent, sizeof power);
      return v.q[i] * power;
    });
  }

  static Bits load_bits(const void* p) {
    Bits v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static Float low_bf16(Bits v) {
    return as_float([&](int i) { return v.q[i] << 16; });
  }
  static Float high_bf16(Bits v) {
    return as_float([&](int i) { return v.q[i] & static_cast<int32_t>(0xffff0000u); });
  }
  static Float load_bf16(const void* p) {  // sixteen 16-bit values
    uint16_t half[16];
    std::memcpy(half, p, sizeof half);
    uint32_t bits[16];
    for (int i = 0; i < 16; ++i) bits[i] = static_cast<uint32_t>(half[i]) << 16;
    Float v;
    std::memcpy(&v, bits, sizeof v);
    return v;
  }
  // Eight nibbles of each lane; nibble I minus 8.
  struct Nibbles {
    Bits word;
    template <int I>
    Float get() const {
      return each([&](int i) { return __builtin_convertvector(((word.q[i] >> (4 * I)) & 15) - 8, F4); });
    }
  };
  static Nibbles nibbles(const void* p) { return {load_bits(p)}; }

  // Both trees: lanes i and i+8, then i+4, i+2, i+1.
  static float sum(Float v) {
    const F4 h = (v.q[0] + v.q[2]) + (v.q[1] + v.q[3]);
    return (h[0] + h[2]) + (h[1] + h[3]);
  }
  static float max_lane(Float v) {
    float m = v.q[0][0];
    for (const F4& q : v.q)
      for (int i = 0; i < 4; ++i) m = q[i] > m ? q[i] : m;
    return m;
  }
  static void sum4(const Float v[4], float* out, int n) {  // the first n of four sums
    for (int i = 0; i < n; ++i) out[i] = sum(v[i]);
  }
  // Bit i: a[i] > b[i].
  static uint32_t greater(Float a, Float b) {
    uint32_t mask = 0;
    for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(a.q[i / 4][i % 4] > b.q[i / 4][i % 4]) << i;
    return mask;
  }

 private:
  template <class F>
  static Float as_float(F f) {
    const Bits bits = {{f(0), f(1), f(2), f(3)}};
    Float v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
  }
};

}  // namespace ddtree::cpu
