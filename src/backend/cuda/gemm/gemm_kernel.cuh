// What:    y[t, o] = Σ_k W[o, k] · x[t, k], and what an epilogue makes of y before it is stored
// Shapes:  W packed bf16 (layout.h), groups of equal matrices · x [T, …] bf16, a group's inputs at its offset
// Mapping: persistent CTAs of 4 or 8 consumer warps, one that streams weights, one that brings rows of x. A consumer
// warp
//          owns one 16-row tile of each of two atoms (plan.h) and all rows of the batch tile. Weights are the A
//          operand, batch rows the columns of B. Where K is sliced, the CTA that finishes an atom's last slice adds the
//          slices.
// Bound:   bytes of W at small T: docs/kernels/dense.md
// Seen:    bench/results/h200/dense*.json
// Limits:  plan.h check_gemm_shape; kMaxGemmRows a launch
//
// A row's bits depend on its own inputs only: every output is one chain of m16n8k16 steps a slice, in order of K,
// slices added in order. Columns of an MMA don't see each other, so tiles and neighbours cannot show.
#pragma once

#include "backend/cuda/gemm/layout.h"
#include "backend/cuda/gemm/output.h"
#include "backend/cuda/gemm/plan.h"
#include "backend/cuda/math.cuh"
#include "backend/cuda/ptx.cuh"

namespace ddtree::cuda {

struct GemmKernelArgs {
  const uint8_t* weights;
  const bf16* x;
  int64_t x_stride, x_group;  // elements between rows, between groups
  GemmOutput out;
  float4* partial;  // [slices][row blocks][column tiles][4 tiles][groups of 8 rows][lanes]
  uint32_t* done;   // [row blocks][column tiles] slices that have arrived; zero between launches
  int32_t first_row, rows;
  int32_t k_blocks, row_blocks, group_blocks, group_rows;
  int32_t slices, column_tiles;
  int32_t weight_blocks, input_blocks, stage_bytes, ring_stages, ring_offset;
};

inline constexpr int kInputWarps = 3;

template <int Groups, int Warps>
struct GemmConfig {
  static constexpr int kGroups = Groups, kRows = 8 * Groups;  // batch rows of a tile
  static constexpr int kWarps = Warps, kTeams = Warps / 4;    // a team of four warps has two atoms
  static constexpr int kAtoms = 2 * kTeams;
  static constexpr int kThreads = (Warps + 1 + kInputWarps) * 32;
};

inline constexpr int kConsumerBarrier = 1;
inline constexpr int kGemmFlagOffset = kMaxGemmStages * 16;  // of shared memory; the barriers come first
static_assert(kGemmFlagOffset + 4 * 4 <= kGemmBarrierBytes);

struct GemmUnit {
  int slice, row_block, atoms, column_tile;
  int group;           // of its row blocks
  int count;           // batch rows
  int k_begin, k_end;  // blocks
  int side;            // K blocks of a stage
};

// Calls body(unit) for the CTA's share, in the same order in every warp.
template <class C, class Body>
__device__ __forceinline__ void for_each_gemm_unit(const GemmKernelArgs& a, Body body) {
  const int per_slice =
      a.column_tiles == 1 ? a.row_blocks : (a.row_blocks + C::kAtoms - 1) / C::kAtoms * a.column_tiles;
  const int64_t work = static_cast<int64_t>(per_slice) * a.slices;
  int at = static_cast<int>(work * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(work * (blockIdx.x + 1) / gridDim.x);
  int used = 0;  // atoms of a run of row blocks that earlier units have taken, where a group ends inside it
  while (at < end) {
    GemmUnit u;
    u.slice = at / per_slice;
    const int rest = at % per_slice;
    int left;
    if (a.column_tiles == 1) {
      u.row_block = rest;
      u.column_tile = 0;
      left = min(a.row_blocks - rest, end - at);
    } else {
      u.row_block = rest / a.column_tiles * C::kAtoms + used;
      u.column_tile = rest % a.column_tiles;
      left = min(a.row_blocks - u.row_block, C::kAtoms - used);
    }
    u.group = u.row_block / a.group_blocks;
    u.atoms = min(min(left, C::kAtoms), (u.group + 1) * a.group_blocks - u.row_block);
    if (a.column_tiles == 1) {
      at += u.atoms;
    } else {
      used = u.atoms < left ? used + u.atoms : 0;
      at += used == 0;
    }
    u.count = min(C::kRows, a.rows - u.column_tile * C::kRows);
    u.k_begin = u.slice * a.k_blocks / a.slices;
    u.k_end = (u.slice + 1) * a.k_blocks / a.slices;
    u.side = min(a.weight_blocks / u.atoms, a.input_blocks);
    body(u);
  }
}

struct GemmRing {
  uint32_t base, bars;
  int stages, stage_bytes;
  int index = 0;
  uint32_t parity = 0;

  __device__ uint32_t full() const { return bars + index * 16; }
  __device__ uint32_t empty() const { return bars + index * 16 + 8; }
  __device__ uint32_t data() const { return base + index * stage_bytes; }
  __device__ void next() {
    if (++index == stages) index = 0, parity ^= 1;
  }
};

// --- arithmetic ---

// acc += W[Mt tiles, 64 K] · x. w: this lane's fragments of the first tile; rows: its ldmatrix row of each group of 8.
template <int Mt, int G>
__device__ __forceinline__ void multiply_block(float (&acc)[2][G][4], uint32_t w, uint32_t atom_bytes,
                                               const uint32_t (&rows)[G], uint32_t row_offset) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint4 a[2][Mt];
    uint32_t b[G][4];
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int mt = 0; mt < Mt; ++mt)
        a[step][mt] = load_shared_128(w + mt * atom_bytes + (2 * half + step) * kGemmStepBytes);
#pragma unroll
    for (int g = 0; g < G; ++g) load_matrix_x4(b[g], rows[g] + row_offset + half * 64);
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int mt = 0; mt < Mt; ++mt) {
        const uint32_t fragment[4] = {a[step][mt].x, a[step][mt].y, a[step][mt].z, a[step][mt].w};
#pragma unroll
        for (int g = 0; g < G; ++g) mma_m16n8k16(acc[mt][g], fragment, b[g][2 * step], b[g][2 * step + 1], acc[mt][g]);
      }
  }
}

template <int Mt, int G>
__device__ __forceinline__ void multiply_stage(float (&acc)[2][G][4], uint32_t w, uint32_t atom_bytes,
                                               const uint32_t (&rows)[G], uint32_t data, int blocks) {
#pragma unroll(G > 4 ? 1 : 2)
  for (int block = 0; block < blocks; ++block)
    multiply_block<Mt, G>(acc, w + block * kGemmBlockBytes, atom_bytes, rows, data + block * (kGemmBlockK * 2));
}

// All of a unit's K; `mine`: atoms of this warp's team.
template <class C>
__device__ __forceinline__ void multiply_unit(const GemmKernelArgs& a, GemmRing& ring, const GemmUnit& u, int mine,
                                              float (&acc)[2][C::kGroups][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pitch = a.input_blocks * (kGemmBlockK * 2) + 16;
  const uint32_t atom_bytes = u.side * kGemmBlockBytes;
  const uint32_t tile = warp / 4 * 2 * atom_bytes + warp % 4 * kGemmTileBytes + lane * 16;
  uint32_t rows[C::kGroups];  // absent rows repeat the last one; nobody reads their columns
#pragma unroll
  for (int g = 0; g < C::kGroups; ++g)
    rows[g] = a.weight_blocks * kGemmBlockBytes + min(g * 8 + lane % 8, u.count - 1) * pitch + lane / 8 * 16;
  for (int k = u.k_begin; k < u.k_end; k += u.side) {
    const int blocks = min(u.side, u.k_end - k);
    barrier_wait(ring.full(), ring.parity);
    const uint32_t data = ring.data();
    if (mine == 2)
      multiply_stage<2>(acc, data + tile, atom_bytes, rows, data, blocks);
    else if (mine == 1)
      multiply_stage<1>(acc, data + tile, atom_bytes, rows, data, blocks);
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty());
    ring.next();
  }
}

// --- what becomes of the sums ---

// Lane values of a tile: d.x, d.z are outputs o, o + 1 of batch row t; d.y, d.w of row t + 1.
struct GemmPlace {
  int group, o, t;
};

__device__ inline void store_pair(const GemmKernelArgs& a, int group, int o, int t, float lo, float hi) {
  const GemmOutput& out = a.out;
  const int64_t row = a.first_row + t;
  switch (out.store) {
    case GemmStore::kF32: {
      float* p = static_cast<float*>(out.data) + row * out.row_stride + group * out.group_stride + o;
      p[0] = lo;
      if (o + 1 < a.group_rows) p[1] = hi;
      return;
    }
    case GemmStore::kSilu:
      static_cast<bf16*>(out.data)[row * out.row_stride + o / 2] = __float2bfloat16_rn(silu_times(lo, hi));
      return;
    case GemmStore::kRope:
      if (o >= out.plain_rows) {
        const int pair = (o - out.plain_rows) / 2, pairs = (a.group_rows - out.plain_rows) / 2;
        const float2 turn = static_cast<const float2*>(out.turns)[row * pairs + pair];
        const float2 turned = rotate_pair(lo, hi, turn);
        bf16* p = static_cast<bf16*>(out.rotated) + row * out.rotated_row_stride + group * out.rotated_group_stride;
        p[out.interleaved ? 2 * pair : pair] = __float2bfloat16_rn(turned.x);
        p[out.interleaved ? 2 * pair + 1 : pair + pairs] = __float2bfloat16_rn(turned.y);
        return;
      }
      [[fallthrough]];
    default: {
      bf16* p = static_cast<bf16*>(out.data) + row * out.row_stride + group * out.group_stride + o;
      if (o + 1 < a.group_rows && (reinterpret_cast<uintptr_t>(p) & 3) == 0) {
        *reinterpret_cast<uint32_t*>(p) = pack_bf16_pair(lo, hi);
      } else {
        p[0] = __float2bfloat16_rn(lo);
        if (o + 1 < a.group_rows) p[1] = __float2bfloat16_rn(hi);
      }
    }
  }
}

inline constexpr int kHeadPitch = kGemmBlockRows + 2;  // floats of a batch row's logits of one atom

template <class C>
__device__ __forceinline__ void put(const GemmKernelArgs& a, float* logits, const GemmUnit& u, int atom, int g,
                                    const float4& d) {
  const int lane = threadIdx.x % 32, tile = threadIdx.x / 32 % 4;
  const int row = tile * 16 + lane / 4 * 2, column = g * 8 + lane % 4 * 2;
  if (a.out.store == GemmStore::kHead) {
    *reinterpret_cast<float2*>(logits + column * kHeadPitch + row) = make_float2(d.x, d.z);
    *reinterpret_cast<float2*>(logits + (column + 1) * kHeadPitch + row) = make_float2(d.y, d.w);
    return;
  }
  const int o = (u.row_block + atom - u.group * a.group_blocks) * kGemmBlockRows + row;
  if (o >= a.group_rows) return;
  const int t = u.column_tile * C::kRows + column;
  if (column < u.count) store_pair(a, u.group, o, t, d.x, d.z);
  if (column + 1 < u.count) store_pair(a, u.group, o, t + 1, d.y, d.w);
}

// The head, an atom at a time: each row's largest logit with its id, the sum of exp beside it, and the logits.
template <class C>
__device__ __forceinline__ void rank_atom(const GemmKernelArgs& a, const float* logits, const GemmUnit& u, int atom) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = u.row_block + atom;
  const int id = block * kGemmBlockRows + 2 * lane;
  for (int column = warp; column < u.count; column += C::kWarps) {
    const int64_t row = a.first_row + u.column_tile * C::kRows + column;
    const float2 v = *reinterpret_cast<const float2*>(logits + column * kHeadPitch + 2 * lane);
    const bool has[2] = {id < a.group_rows, id + 1 < a.group_rows};
    uint64_t best = has[0] ? rank_key(v.x, id) : 0;
    if (has[1]) best = max(best, rank_key(v.y, id + 1));
    best = warp_max(best);
    const float top = rank_value(static_cast<uint32_t>(best >> 32));
    const bool infinite = isinf(top);  // then the sum only tells of NaN
    const auto term = [&](float x) { return infinite ? (x != x ? x : 0.f) : expf(__fsub_rn(x, top)); };
    const float sum = warp_sum(__fadd_rn(has[0] ? term(v.x) : 0.f, has[1] ? term(v.y) : 0.f));
    if (lane == 0) {
      a.out.best[row * a.row_blocks + block] = best;
      a.out.sums[row * a.row_blocks + block] = sum;
    }
    if (a.out.data == nullptr) continue;
    float* p = static_cast<float*>(a.out.data) + row * a.out.row_stride + id;
    if (has[0]) p[0] = v.x;
    if (has[1]) p[1] = v.y;
  }
}

__device__ inline int64_t partial_at(const GemmKernelArgs& a, const GemmUnit& u, int slice, int atom, int groups) {
  const int64_t block = static_cast<int64_t>(slice) * a.row_blocks + u.row_block + atom;
  return ((block * a.column_tiles + u.column_tile) * kGemmTiles + threadIdx.x / 32 % 4) * groups * 32 +
         threadIdx.x % 32;
}

// Stores this CTA's sums of a slice; flags[atom] tells whether it was the atom's last.
template <class C>
__device__ __forceinline__ void share_slice(const GemmKernelArgs& a, const GemmUnit& u, int mine, int* flags,
                                            const float (&acc)[2][C::kGroups][4]) {
  const int team = threadIdx.x / 128;
#pragma unroll
  for (int mt = 0; mt < 2; ++mt) {
    if (mt >= mine) continue;
    float4* to = a.partial + partial_at(a, u, u.slice, 2 * team + mt, C::kGroups);
#pragma unroll
    for (int g = 0; g < C::kGroups; ++g)
      if (g * 8 < u.count) to[g * 32] = make_float4(acc[mt][g][0], acc[mt][g][1], acc[mt][g][2], acc[mt][g][3]);
  }
  named_barrier(kConsumerBarrier, C::kWarps * 32);
  if (static_cast<int>(threadIdx.x) < u.atoms) {
    uint32_t* done = a.done + static_cast<int64_t>(u.row_block + threadIdx.x) * a.column_tiles + u.column_tile;
    __threadfence();
    const bool last = atomicAdd(done, 1) == static_cast<uint32_t>(a.slices) - 1;
    if (last) *done = 0;
    __threadfence();
    flags[threadIdx.x] = last;
  }
  named_barrier(kConsumerBarrier, C::kWarps * 32);
}

__device__ inline float4 add_slices(const GemmKernelArgs& a, const float4* from, int64_t slice_step) {
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int s = 0; s < a.slices; s += 4) {  // loads of four are on their way together
    float4 v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] = s + i < a.slices ? __ldcg(from + (s + i) * slice_step) : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum.x = __fadd_rn(sum.x, v[i].x);
      sum.y = __fadd_rn(sum.y, v[i].y);
      sum.z = __fadd_rn(sum.z, v[i].z);
      sum.w = __fadd_rn(sum.w, v[i].w);
    }
  }
  return sum;
}

template <class C>
__device__ __forceinline__ void finish_unit(const GemmKernelArgs& a, uint8_t* smem, const GemmUnit& u, int mine,
                                            const float (&acc)[2][C::kGroups][4]) {
  int* flags = reinterpret_cast<int*>(smem + kGemmFlagOffset);
  float* logits = reinterpret_cast<float*>(smem + kGemmBarrierBytes);
  const int team = threadIdx.x / 128;
  const int64_t slice_step = static_cast<int64_t>(a.row_blocks) * a.column_tiles * kGemmTiles * C::kGroups * 32;
  if (a.slices > 1) share_slice<C>(a, u, mine, flags, acc);
#pragma unroll
  for (int mt = 0; mt < 2; ++mt)
    for (int t = 0; t < C::kTeams; ++t) {
      const int atom = 2 * t + mt;
      if (atom >= u.atoms || (a.slices > 1 && !flags[atom])) continue;
      if (a.slices > 1) {
        const float4* from = a.partial + partial_at(a, u, 0, atom, C::kGroups);
        for (int g = team; g < C::kGroups && g * 8 < u.count; g += C::kTeams)
          put<C>(a, logits, u, atom, g, add_slices(a, from + g * 32, slice_step));
      } else if (team == t) {
#pragma unroll
        for (int g = 0; g < C::kGroups; ++g)
          if (g * 8 < u.count)
            put<C>(a, logits, u, atom, g, make_float4(acc[mt][g][0], acc[mt][g][1], acc[mt][g][2], acc[mt][g][3]));
      }
      if (a.out.store != GemmStore::kHead) continue;
      named_barrier(kConsumerBarrier, C::kWarps * 32);
      rank_atom<C>(a, logits, u, atom);
      named_barrier(kConsumerBarrier, C::kWarps * 32);
    }
}

// --- roles ---

template <class C>
__device__ __forceinline__ void consume_gemm(const GemmKernelArgs& a, GemmRing& ring, uint8_t* smem) {
  const int team = threadIdx.x / 128;
  for_each_gemm_unit<C>(a, [&](const GemmUnit& u) {
    const int mine = min(max(u.atoms - 2 * team, 0), 2);
    float acc[2][C::kGroups][4] = {};
    multiply_unit<C>(a, ring, u, mine, acc);
    finish_unit<C>(a, smem, u, mine, acc);
  });
}

template <class C>
__device__ __forceinline__ void stream_gemm_weights(const GemmKernelArgs& a, GemmRing& ring) {
  const int lane = threadIdx.x % 32;
  const uint64_t policy = a.column_tiles == 1 ? evict_first_policy() : evict_normal_policy();
  for_each_gemm_unit<C>(a, [&](const GemmUnit& u) {
    const uint8_t* from = a.weights + static_cast<int64_t>(u.row_block + lane) * a.k_blocks * kGemmBlockBytes;
    for (int k = u.k_begin; k < u.k_end; k += u.side) {
      const int bytes = min(u.side, u.k_end - k) * kGemmBlockBytes;
      barrier_wait(ring.empty(), ring.parity ^ 1);
      if (lane == 0) barrier_arrive_expect(ring.full(), u.atoms * bytes);
      __syncwarp();
      if (lane < u.atoms)
        bulk_copy(ring.data() + lane * u.side * kGemmBlockBytes, from + static_cast<int64_t>(k) * kGemmBlockBytes,
                  bytes, ring.full(), policy);
      ring.next();
    }
  });
}

// Eight threads copy the 128 bytes that a row has of a K block. One bulk copy a row would take about 130 cycles each.
template <class C>
__device__ __forceinline__ void bring_inputs(const GemmKernelArgs& a, GemmRing& ring) {
  constexpr int kStep = kInputWarps * 32 / 8;  // rows that the warps copy at a time
  const int helper = threadIdx.x - (C::kWarps + 1) * 32, row = helper / 8,
            pitch = a.input_blocks * (kGemmBlockK * 2) + 16;
  const uint32_t place = a.weight_blocks * kGemmBlockBytes + row * pitch + helper % 8 * 16;
  for_each_gemm_unit<C>(a, [&](const GemmUnit& u) {
    const int64_t first = a.first_row + u.column_tile * C::kRows + row;
    const bf16* x = a.x + first * a.x_stride + u.group * a.x_group + helper % 8 * 8;
    for (int k = u.k_begin; k < u.k_end; k += u.side) {
      const int blocks = min(u.side, u.k_end - k);
      barrier_wait(ring.empty(), ring.parity ^ 1);
      const uint32_t to = ring.data() + place;
#pragma unroll
      for (int i = 0; i < C::kRows; i += kStep) {
        if (i + row >= u.count) break;
        const bf16* from = x + i * a.x_stride + k * kGemmBlockK;
        for (int block = 0; block < blocks; ++block)
          copy_16(to + i * pitch + block * (kGemmBlockK * 2), from + block * kGemmBlockK, true);
      }
      copy_arrive(ring.full());
      ring.next();
    }
  });
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1) gemm_kernel(const __grid_constant__ GemmKernelArgs a) {
  extern __shared__ __align__(128) uint8_t smem[];
  const int warp = threadIdx.x / 32;
  GemmRing ring{shared_address(smem + a.ring_offset), shared_address(smem), a.ring_stages, a.stage_bytes};
  if (threadIdx.x == 0) {
    for (int s = 0; s < a.ring_stages; ++s) {
      barrier_init(ring.bars + s * 16, 1 + kInputWarps * 32);  // full: weights, and each thread's inputs
      barrier_init(ring.bars + s * 16 + 8, C::kWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  let_next_kernel_start();
  if (warp == C::kWarps) {
    stream_gemm_weights<C>(a, ring);  // the only ones that no kernel before writes
    return;
  }
  wait_for_previous_kernel();
  if (warp < C::kWarps)
    consume_gemm<C>(a, ring, smem);
  else
    bring_inputs<C>(a, ring);
}

}  // namespace ddtree::cuda
