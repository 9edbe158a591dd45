// What:    checkpoint order → packed blocks (layout.h) of one expert
// Shapes:  words [R, K/8] u32, scales [R, K/32] bf16, each of gate, up and down → [row blocks, K/128] blocks of 4608
// bytes Mapping: one CTA a block; a thread builds packed words from two rows' words each Bound:   bytes, read and
// written once: 19 GB a layer of Kimi K2.6 Limits:  hidden and inter multiples of 128 (check_expert_shape)
#include <algorithm>
#include <string>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/moe/experts.h"
#include "backend/cuda/moe/layout.h"

namespace ddtree::cuda {
namespace {

constexpr int kPackThreads = 256;
constexpr int kRowWords = kBlockK / 8;

// Rows 0 … 31 of a gate_up block come from source 0, rows 32 … 63 from source 1; a down block's all from source 0.
struct PackArgs {
  ExpertMatrix source[2];
  uint8_t* dst;
  int32_t k_blocks, blocks;
  Projection projection;
};

__global__ void __launch_bounds__(kPackThreads) pack_kernel(const PackArgs a) {
  __shared__ uint32_t rows[kBlockRows][kRowWords + 1];
  __shared__ uint16_t scales[kBlockRows][kBlockK / kGroup];
  const int b = blockIdx.x, row_block = b / a.k_blocks, k_block = b % a.k_blocks, tid = threadIdx.x;
  const bool paired = a.projection == Projection::kGateUp;
  const auto source = [&](int row) -> const ExpertMatrix& { return a.source[paired && row >= 32]; };
  const auto line = [&](int row) {
    return static_cast<int64_t>(paired ? row_block * 32 + row % 32 : row_block * 64 + row);
  };
  for (int i = tid; i < kBlockRows * kRowWords; i += kPackThreads) {
    const int row = i / kRowWords, word = i % kRowWords;
    rows[row][word] = source(row).words[(line(row) * a.k_blocks + k_block) * kRowWords + word];
  }
  {
    const int row = tid / 4, group = tid % 4;
    scales[row][group] = source(row).scales[(line(row) * a.k_blocks + k_block) * 4 + group];
  }
  __syncthreads();
  uint8_t* block = a.dst + static_cast<int64_t>(b) * kBlockBytes;
  for (int i = tid; i < kTiles * 256; i += kPackThreads) {
    const int tile = i / 256;
    const WordPlace at = word_place(i % 256);
    const uint32_t* lo = &rows[block_row(a.projection, {tile, at.group, 0})][2 * at.step];
    const uint32_t* hi = &rows[block_row(a.projection, {tile, at.group, 1})][2 * at.step];
    reinterpret_cast<uint32_t*>(block + tile * kTileBytes)[i % 256] = pack_word(lo, hi, at.quad_lane);
  }
  const int row = tid / 4, group = tid % 4;
  *reinterpret_cast<uint16_t*>(block + scale_offset(a.projection, row, group * kGroup)) = scales[row][group];
}

Status pack(const PackArgs& args, const char* what, cudaStream_t stream) {
  pack_kernel<<<args.blocks, kPackThreads, 0, stream>>>(args);
  return cuda_status(cudaGetLastError(), std::string("packing ") + what);
}

int64_t expert_bytes(int64_t rows, int64_t k) { return rows / kBlockRows * (k / kBlockK) * kBlockBytes; }

}  // namespace

int64_t gate_up_bytes(const ExpertShape& shape) {
  return shape.experts * expert_bytes(2 * static_cast<int64_t>(shape.inter), shape.hidden);
}
int64_t down_bytes(const ExpertShape& shape) { return shape.experts * expert_bytes(shape.hidden, shape.inter); }

Status pack_expert(const ExpertShape& shape, int32_t expert, ExpertMatrix gate, ExpertMatrix up, ExpertMatrix down,
                   void* packed_gate_up, void* packed_down, cudaStream_t stream) {
  const int64_t gate_up = gate_up_bytes(shape) / shape.experts, downs = down_bytes(shape) / shape.experts;
  TRY(pack({{gate, up},
            static_cast<uint8_t*>(packed_gate_up) + expert * gate_up,
            shape.hidden / kBlockK,
            static_cast<int32_t>(gate_up / kBlockBytes),
            Projection::kGateUp},
           "gate_up", stream));
  return pack({{down, down},
               static_cast<uint8_t*>(packed_down) + expert * downs,
               shape.inter / kBlockK,
               static_cast<int32_t>(downs / kBlockBytes),
               Projection::kDown},
              "down", stream);
}

}  // namespace ddtree::cuda
