// The kernels an instruction set must provide, behind one table that is chosen at start (select_kernels). Their results
// for a row (or a query, or a chunk) never depend on how many others share the call: every sum has one fixed order.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddtree::cpu {

inline constexpr int kLanes = 16;        // outputs in a panel
inline constexpr int kBlockPanels = 4;   // panels stored interleaved, so that a kernel reads one linear stream
inline constexpr int kRowTile = 96;      // most rows in one gemm call
inline constexpr int kChunk = 64;        // keys in an attention chunk
inline constexpr int kTileQueries = 24;  // most queries in one attention call

enum class Format : uint8_t { kF32, kBf16, kInt4Bf16, kInt4F32 };  // INT4 by the type of its scales

// y = W·x packed for the kernels: panels of 16 outputs (lane = output, padded with zeros), four panels to a block.
// A block is a run of steps, each step one 64-byte line per panel:
//   F32   one k: 16 floats
//   BF16  two k: lane = weight of the even k in the low half, of the odd k in the high half
//   INT4  eight k: lane = the checkpoint's own word; after each group a line (F32) or half line (BF16) of scales
struct PackedMatrix {
  const uint8_t* data = nullptr;
  Format format = Format::kF32;
  int32_t group = 0;  // INT4: k per scale
  int64_t out = 0, in = 0;
  int64_t panel_bytes = 0;

  int64_t panels() const { return (out + kLanes - 1) / kLanes; }
  int64_t bytes() const { return panels() * panel_bytes; }
};

// y[r][16·(p − first_column_panel) …] = W·x[r] for panels [panel_begin, panel_end), rows ≤ kRowTile.
struct GemmArgs {
  const PackedMatrix* w;
  int64_t panel_begin, panel_end;
  const float* const* x;
  float* const* y;
  int32_t rows;
  int64_t first_column_panel;
};

struct KernelTable {
  std::string_view name;

  void (*gemm)(const GemmArgs& args);
  // out[i] = silu(gate[i]) · up[i]
  void (*silu_mul)(float* out, const float* gate, const float* up, int64_t n);
  void (*add)(float* y, const float* x, int64_t n);                  // y += x
  void (*add_scaled)(float* y, const float* x, float a, int64_t n);  // y += a · x
  void (*rms_norm)(float* out, const float* x, const float* gain, int64_t n, float eps);

  // One attention chunk of up to kChunk keys. scores [queries][kChunk] = q·k for each key given.
  void (*scores)(const float* const* q, int32_t queries, const float* const* keys, int32_t n, int64_t dim,
                 float* scores);
  // In place: p = exp(scale · s − max); slots without a key hold −infinity and become 0.
  void (*softmax)(float* scores, float scale, float* max, float* sum);
  // state[q] = alpha[q] · state[q] + beta[q] · Σ p[q][j] · values[j]
  void (*mix)(const float* p, int32_t queries, const float* const* values, int32_t n, int64_t dim, const float* alpha,
              const float* beta, float* const* state);
  void (*scale)(float* out, const float* x, float a, int64_t n);

  // Vocabulary: the largest value, and Σ exp(v − max).
  void (*log_sum)(const float* v, int64_t n, float* max, float* sum);
  // The indices of values > threshold, ascending; returns how many.
  int64_t (*select_greater)(const float* v, int64_t n, float threshold, int32_t* index);
};

extern const KernelTable kPortableKernels;
extern const KernelTable kAvx512Kernels;  // call only where the CPU has AVX-512 F, BW, DQ and VL

}  // namespace ddtree::cpu
