// What:   y[r][o] = Σ_k W[o][k] · x[r][k] for a run of panels of a PackedMatrix and up to kRowTile rows; any format.
// Order:  each (row, output) is one chain over ascending k: acc = x[k]·w[k] + acc. INT4: one chain from zero per group,
//         then acc = group sum · scale + acc. Blocking by rows, panels and k only stores and reloads the chain.
// Mapping: lane = output, so there is no horizontal sum; a tile keeps rows × panels accumulators in registers, reads
//         each weight line once for its rows, and broadcasts x.
// Bound:  one row: the weight stream (bytes()); many rows: rows · out · in multiply-adds.
// Limits: GemmArgs; sizes are checked where matrices are packed (pack.cc).
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_gemm_tile.h"

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
      typename Tile::Block b;
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
  using Tile = GemmTile<V>;
  // Bytes of a block's weights that stay in the second-level cache while row after row uses them.
  static constexpr int64_t kCachedBytes = 64 * 1024;

  static void run_block(const PackedMatrix& w, const typename Tile::Block& b, const GemmArgs& args, int64_t column) {
    int64_t chunk = w.in;
    if (args.rows > V::kTileRows) {
      const int64_t unit = w.group != 0 ? w.group : 2;
      chunk = kCachedBytes * w.in / (b.width * w.panel_bytes) / unit * unit;
      if (chunk < unit) chunk = unit;
    }
    typename Tile::Args tile = {&w, &b, 0, 0, nullptr, nullptr, column, false};
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
  static typename Tile::Fn pick_format(Format format) {
    switch (format) {
      case Format::kF32: return Tile::template f32<M, P>;
      case Format::kBf16: return Tile::template bf16<M, P>;
      case Format::kInt4Bf16: return Tile::template int4<true, M, P>;
      case Format::kInt4F32: return Tile::template int4<false, M, P>;
    }
    return nullptr;
  }
  template <int M>
  static typename Tile::Fn pick_panels(Format format, int panels) {
    switch (panels) {
      case 1: return pick_format<M, 1>(format);
      case 2: return pick_format<M, 2>(format);
      case 3: return pick_format<M, 3>(format);
      default: return pick_format<M, 4>(format);
    }
  }
  template <int M = V::kTileRows>
  static typename Tile::Fn tile_fn(Format format, int rows, int panels) {
    if constexpr (M > 1) {
      if (rows < M) return tile_fn<M - 1>(format, rows, panels);
    }
    return pick_panels<M>(format, panels);
  }
};

}  // namespace ddtree::cpu
