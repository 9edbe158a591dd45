// What:   y[r][o] = Σ_k W[o][k] · x[r][k] for a run of panels of a PackedMatrix and up to kRowTile rows; any format.
// Order:  each (row, output) is one chain over ascending k: acc = x[k]·w[k] + acc. INT4: one chain from zero per group,
//         then acc = group sum · scale + acc. Blocking by rows, panels and k only stores and reloads the chain.
// Mapping: lane = output, so there is no horizontal sum; a tile keeps rows × panels accumulators in registers, reads
//         each weight line once for its rows, and broadcasts x.
// Bound:  one row: the weight stream (bytes()); many rows: rows · out · in multiply-adds.
// Limits: GemmArgs; sizes are checked where matrices are packed (pack.cc).
#pragma once

#include "backend/cpu/kernels.h"

namespace ddtree::cpu {

template <class V>
class GemmKernel {
 public:
  static void run(const GemmArgs& args) {
    const PackedMatrix& w = *args.w;
    const int64_t panels = w.panels();
    for (int64_t p = args.panel_begin; p < args.panel_end;) {
      const int64_t block = p / kBlockPanels * kBlockPanels;
      const int64_t end = block + kBlockPanels < args.panel_end ? block + kBlockPanels : args.panel_end;
      Block b;
      b.width = panels - block < kBlockPanels ? panels - block : kBlockPanels;
      b.data = w.data + block * w.panel_bytes;
      b.first = p - block;
      b.panels = static_cast<int>(end - p);
      b.lanes = end == panels ? static_cast<int>(w.out - (panels - 1) * kLanes) : kLanes;
      run_block(w, b, args, (p - args.first_column_panel) * kLanes);
      p = end;
    }
  }

 private:
  using Float = typename V::Float;
  using Bits = typename V::Bits;
  static constexpr int kLine = 64;
  // Bytes of a block's weights that stay in the second-level cache while row after row uses them.
  static constexpr int64_t kCachedBytes = 64 * 1024;

  struct Block {
    const uint8_t* data;
    int64_t width;  // panels interleaved
    int64_t first;  // of them, this call's
    int panels;
    int lanes;  // outputs in the last panel of this call
  };
  // One tile: k in [begin, end); `resume` continues the sums in y.
  struct Tile {
    const PackedMatrix* w;
    const Block* block;
    int64_t begin, end;
    const float* const* x;
    float* const* y;
    int64_t column;
    bool resume;
  };
  using TileFn = void (*)(const Tile&);

  static void run_block(const PackedMatrix& w, const Block& b, const GemmArgs& args, int64_t column) {
    int64_t chunk = w.in;
    if (args.rows > V::kTileRows) {
      const int64_t unit = w.group != 0 ? w.group : 2;
      chunk = kCachedBytes * w.in / (b.width * w.panel_bytes) / unit * unit;
      if (chunk < unit) chunk = unit;
    }
    Tile tile = {&w, &b, 0, 0, nullptr, nullptr, column, false};
    for (int64_t k = 0; k < w.in; k = tile.end) {
      tile.begin = k;
      tile.end = k + chunk < w.in ? k + chunk : w.in;
      tile.resume = k != 0;
      const int tiles = (args.rows + V::kTileRows - 1) / V::kTileRows;
      for (int t = 0; t < tiles; ++t) {  // tiles as even as possible
        const int row = args.rows * t / tiles;
        tile.x = args.x + row;
        tile.y = args.y + row;
        tile_fn(w.format, args.rows * (t + 1) / tiles - row, b.panels)(tile);
      }
    }
  }

  template <int M, int P>
  struct Sums {
    Float v[M][P];

    void start(const Tile& t) {
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
    void store(const Tile& t) const {
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
    explicit RowPointers(const Tile& t) {
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) p[m] = t.x[m];
    }
    Float operator()(int m, int64_t k) const { return V::set(p[m][k]); }
  };

  template <int M, int P>
  static void tile_f32(const Tile& t) {
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
  static void tile_bf16(const Tile& t) {
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
  static void tile_int4(const Tile& t) {
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

  template <int I = 0, class F>
  static void for_each_nibble(F f) {
    f.template operator()<I>();
    if constexpr (I < 7) for_each_nibble<I + 1>(f);
  }

  template <int M, int P>
  static TileFn pick_format(Format format) {
    switch (format) {
      case Format::kF32: return tile_f32<M, P>;
      case Format::kBf16: return tile_bf16<M, P>;
      case Format::kInt4Bf16: return tile_int4<true, M, P>;
      case Format::kInt4F32: return tile_int4<false, M, P>;
    }
    return nullptr;
  }
  template <int M>
  static TileFn pick_panels(Format format, int panels) {
    switch (panels) {
      case 1: return pick_format<M, 1>(format);
      case 2: return pick_format<M, 2>(format);
      case 3: return pick_format<M, 3>(format);
      default: return pick_format<M, 4>(format);
    }
  }
  template <int M = V::kTileRows>
  static TileFn tile_fn(Format format, int rows, int panels) {
    if constexpr (M > 1) {
      if (rows < M) return tile_fn<M - 1>(format, rows, panels);
    }
    return pick_panels<M>(format, panels);
  }
};

}  // namespace ddtree::cpu
