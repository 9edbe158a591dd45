// What:    one tile of a gemm: up to kTileRows rows × four panels of one block, over a run of k.
// Order:   see kernels_gemm.h; sums that `resume` are stored and reloaded exactly.
// Mapping: rows × panels accumulators in registers; a weight line is read once for all rows; x is broadcast.
#pragma once

#include "backend/cpu/kernels.h"

namespace ddtree::cpu {

template <class V>
class GemmTile {
 public:
  static constexpr int kLine = 64;

  struct Block {
    const uint8_t* data;
    int64_t width;  // panels interleaved
    int64_t first;  // of them, this call's
    int panels;
    int lanes;  // outputs in the last panel of this call
  };
  // One tile: k in [begin, end); `resume` continues the sums in y.
  struct Args {
    const PackedMatrix* w;
    const Block* block;
    int64_t begin, end;
    const float* const* x;
    float* const* y;
    int64_t column;
    bool resume;
  };
  using Fn = void (*)(const Args&);

  template <int M, int P>
  static void f32(const Args& t) {
    Sums<M, P> sums;
    sums.start(t);
    const RowPointers<M> x(t);
    const int64_t step = t.block->width * kLine;
    const uint8_t* w = t.block->data + t.begin * step + t.block->first * kLine;
    for (int64_t k = t.begin; k < t.end; ++k, w += step) {
      Float line[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) line[p] = V::load(reinterpret_cast<const float*>(w) + p * kLanes);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums.fma(m, x(m, k), line);
    }
    sums.store(t);
  }

  template <int M, int P>
  static void bf16(const Args& t) {
    Sums<M, P> sums;
    sums.start(t);
    const RowPointers<M> x(t);
    const int64_t step = t.block->width * kLine;
    const uint8_t* w = t.block->data + t.begin / 2 * step + t.block->first * kLine;
    int64_t k = t.begin;
    for (; k + 2 <= t.end; k += 2, w += step) {
      Bits raw[P];
      Float line[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        raw[p] = V::load_bits(w + p * kLine);
        line[p] = V::low_bf16(raw[p]);
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums.fma(m, x(m, k), line);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) line[p] = V::high_bf16(raw[p]);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums.fma(m, x(m, k + 1), line);
    }
    if (k < t.end) {  // the last k of an odd `in`
      Float line[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) line[p] = V::low_bf16(V::load_bits(w + p * kLine));
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) sums.fma(m, x(m, k), line);
    }
    sums.store(t);
  }

  template <bool kBf16Scale, int M, int P>
  static void int4(const Args& t) {
    constexpr int kScaleBytes = kBf16Scale ? kLine / 2 : kLine;
    Sums<M, P> sums;
    sums.start(t);
    const RowPointers<M> x(t);
    const int64_t group = t.w->group;
    const int64_t step = t.block->width * kLine, scale_step = t.block->width * kScaleBytes;
    const uint8_t* base = t.block->data + t.begin / group * (group / 8 * step + scale_step);
    for (int64_t g = t.begin; g < t.end; g += group) {
      Sums<M, P> part;
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) part.v[m][p] = V::zero();
      for (int64_t k = g; k < g + group; k += 8, base += step) {
        typename V::Nibbles word[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) word[p] = V::nibbles(base + (t.block->first + p) * kLine);
        for_each_nibble([&]<int I>() {
          Float line[P];
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) line[p] = word[p].template get<I>();
#pragma GCC unroll 8
          for (int m = 0; m < M; ++m) part.fma(m, x(m, k + I), line);
        });
      }
      Float scale[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const uint8_t* s = base + (t.block->first + p) * kScaleBytes;
        if constexpr (kBf16Scale)
          scale[p] = V::load_bf16(s);
        else
          scale[p] = V::load(reinterpret_cast<const float*>(s));
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) sums.v[m][p] = V::fma(part.v[m][p], scale[p], sums.v[m][p]);
      base += scale_step;
    }
    sums.store(t);
  }

 private:
  using Float = typename V::Float;
  using Bits = typename V::Bits;

  template <int M, int P>
  struct Sums {
    Float v[M][P];

    void start(const Args& t) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) v[m][p] = V::zero();
      if (!t.resume) return;
      for (int m = 0; m < M; ++m) {
        const float* y = t.y[m] + t.column;
#pragma GCC unroll 4
        for (int p = 0; p < P - 1; ++p) v[m][p] = V::load(y + p * kLanes);
        v[m][P - 1] = V::load(y + (P - 1) * kLanes, t.block->lanes, 0);
      }
    }
    void store(const Args& t) const {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        float* y = t.y[m] + t.column;
#pragma GCC unroll 4
        for (int p = 0; p < P - 1; ++p) V::store(y + p * kLanes, v[m][p]);
        if (t.block->lanes == kLanes)
          V::store(y + (P - 1) * kLanes, v[m][P - 1]);
        else
          V::store(y + (P - 1) * kLanes, v[m][P - 1], t.block->lanes);
      }
    }
    void fma(int m, Float x, const Float (&w)[P]) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) v[m][p] = V::fma(x, w[p], v[m][p]);
    }
  };

  template <int M>
  struct RowPointers {
    const float* p[M];
    explicit RowPointers(const Args& t) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) p[m] = t.x[m];
    }
    Float operator()(int m, int64_t k) const { return V::set(p[m][k]); }
  };

  template <int I = 0, class F>
  static void for_each_nibble(F f) {
    f.template operator()<I>();
    if constexpr (I < 7) for_each_nibble<I + 1>(f);
  }
};

}  // namespace ddtree::cpu
