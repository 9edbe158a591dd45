// PortableVec's interface in AVX-512. Only *_avx512.cc may include this.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace ddtree::cpu {

struct Avx512Vec {
  using Float = __m512;
  using Bits = __m512i;
  static constexpr int kTileRows = 6;

  static Float zero() { return _mm512_setzero_ps(); }
  static Float set(float v) { return _mm512_set1_ps(v); }
  static Float load(const float* p) { return _mm512_loadu_ps(p); }
  static Float load(const float* p, int64_t n, float fill) {
    return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), lanes(n), p);
  }
  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
  static void store(float* p, Float v, int64_t n) { _mm512_mask_storeu_ps(p, lanes(n), v); }

  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float min(Float a, Float b) { return _mm512_min_ps(a, b); }
  static Float zero_below(Float x, float limit, Float v) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), v);
  }
  static Float round(Float n) { return _mm512_roundscale_ps(n, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Float times_power_of_two(Float v, Float n) { return _mm512_scalef_ps(v, n); }

  static Bits load_bits(const void* p) {
    Bits v = _mm512_loadu_si512(p);
    // Kept in a register: as an operand of each of its uses it would be loaded each time, and one row's speed is loads.
    asm("" : "+v"(v));
    return v;
  }
  static Float low_bf16(Bits v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
  static Float high_bf16(Bits v) {
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static Float load_bf16(const void* p) {
    const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  // A permutation reads only the low bits of each index: no mask is needed. One shift serves two nibbles: of 32-bit
  // lanes the lower one is the index, of 16-bit lanes the upper half's is, which looks the BF16 up that is the float's.
  struct Nibbles {
    Bits word;
    template <int I>
    Float get() const {
      const Bits index = I % 4 == 0 ? word : _mm512_srli_epi32(word, 4 * (I % 4));
      if constexpr (I < 4)
        return _mm512_permutexvar_ps(index, _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7));
      constexpr int64_t k0 = 0xc0a0c0c0c0e0c100, k4 = 0xbf80c000c040c080, k8 = 0x404040003f800000,
                        k12 = 0x40e040c040a04080;
      return _mm512_castsi512_ps(
          _mm512_maskz_permutexvar_epi16(0xaaaaaaaa, index, _mm512_setr_epi64(k0, k4, k8, k12, k0, k4, k8, k12)));
    }
  };
  static Nibbles nibbles(const void* p) { return {load_bits(p)}; }

  static float sum(Float v) {
    const __m128 h = quarter(v);
    const __m128 pair = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
  }
  static float max_lane(Float v) { return _mm512_reduce_max_ps(v); }
  static void sum4(const Float v[4], float* out, int n) {
    __m128 a = quarter(v[0]), b = quarter(v[1]), c = quarter(v[2]), d = quarter(v[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_mask_storeu_ps(out, static_cast<__mmask8>((1 << n) - 1), _mm_add_ps(_mm_add_ps(a, c), _mm_add_ps(b, d)));
  }
  static uint32_t greater(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

 private:
  static __mmask16 lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  // Lanes i, i+8, i+4 and i+12 summed.
  static __m128 quarter(Float v) {
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  }
};

}  // namespace ddtree::cpu
