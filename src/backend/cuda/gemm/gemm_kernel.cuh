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

#include <cuda.h>

#include "backend/cuda/gemm/layout.h"
#include "backend/cuda/gemm/output.h"
#include "backend/cuda/gemm/plan.h"
#include "backend/cuda/math.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/wgmma.cuh"

namespace ddtree::cuda {

struct GemmKernelArgs {
  const uint8_t* weights;
  GemmOutput out;
  float4* partial;  // [slices][row blocks][column tiles][4 tiles][groups of 8 rows][lanes]
  uint32_t* done;   // [row blocks][column tiles] slices that have arrived; zero between launches
  int32_t first_row, rows;
  int32_t x_group;  // elements between the inputs of neighbouring groups
  int32_t k_blocks, row_blocks, group_blocks, group_rows;
  int32_t slices, column_tiles;
  int32_t weight_blocks, input_blocks, stage_bytes, ring_stages, ring_offset;
};

// Wgmma: the same sums, bit for bit, by warpgroups.
template <int Groups, int Warps, bool Wgmma>
struct GemmConfig {
  static constexpr int kGroups = Groups, kRows = 8 * Groups;  // batch rows of a tile
  static constexpr int kWarps = Warps, kTeams = Warps / 4;    // a team of four warps has two atoms
  static constexpr int kAtoms = 2 * kTeams;
  static constexpr int kThreads = (Warps + 2) * 32;
  static constexpr bool kWgmma = Wgmma;
  static constexpr int kInputBlock = kRows * kGemmBlockK * 2;  // bytes of a K block's inputs
};

inline constexpr int kConsumerBarrier = 1;
inline constexpr int kGemmFlagOffset = kMaxGemmStages * 16;  // of shared memory; the barriers come first
static_assert(kGemmFlagOffset + 4 <= kGemmBarrierBytes);

struct GemmUnit {
  int slice, row_block, atoms, column_tile;
  int group;           // of its row blocks
  int count;           // batch rows
  int k_begin, k_end;  // blocks
  int side;            // K blocks of a stage
};

// The CTA's share of the work, in the same order in every warp: atoms slice by slice; where the batch has several
// column tiles, runs of kAtoms row blocks, all column tiles of a run before the next.
template <class C>
struct GemmWalk {
  int at, end;
  int used = 0;  // row blocks of the run that earlier units have taken, where a group ends inside it

  __device__ explicit GemmWalk(const GemmKernelArgs& a) {
    const int64_t work = static_cast<int64_t>(per_slice(a)) * a.slices;
    at = static_cast<int>(work * blockIdx.x / gridDim.x);
    end = static_cast<int>(work * (blockIdx.x + 1) / gridDim.x);
  }
  __device__ static int per_slice(const GemmKernelArgs& a) {
    return a.column_tiles == 1 ? a.row_blocks : (a.row_blocks + C::kAtoms - 1) / C::kAtoms * a.column_tiles;
  }
  __device__ bool done() const { return at >= end; }

  __device__ GemmUnit next(const GemmKernelArgs& a) {
    const int rest = at % per_slice(a);
    GemmUnit u;
    u.slice = at / per_slice(a);
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
    return u;
  }
};

template <class C, class Body>
__device__ __forceinline__ void for_each_gemm_unit(const GemmKernelArgs& a, Body body) {
  for (GemmWalk<C> walk(a); !walk.done();) body(walk.next(a));
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

// acc += W[Mt tiles, 64 K] · x. w: this lane's fragments of the first tile; rows: its ldmatrix row of the first group
// of 8, for each half of K.
template <int Mt, int G>
__device__ __forceinline__ void multiply_block(float (&acc)[2][G][4], uint32_t w, uint32_t atom_bytes,
                                               const uint32_t (&rows)[2]) {
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
    for (int g = 0; g < G; ++g) load_matrix_x4(b[g], rows[half] + g * 1024);
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

// One stage by mma.sync. tile: this lane's place in the weights; inputs: rows of 128 bytes, 16-byte chunk c of row r at
// chunk c ^ r % 8.
template <class C, int Mt>
__device__ __forceinline__ void multiply_stage(float (&acc)[2][C::kGroups][4], uint32_t tile, uint32_t atom_bytes,
                                               uint32_t inputs, int blocks) {
  const int lane = threadIdx.x % 32, row = lane % 8;
#pragma unroll(C::kGroups > 4 ? 1 : 2)
  for (int block = 0; block < blocks; ++block) {
    const uint32_t first = inputs + block * C::kInputBlock + row * 128;
    const uint32_t rows[2] = {first + ((lane / 8) ^ row) * 16, first + ((4 + lane / 8) ^ row) * 16};
    multiply_block<Mt, C::kGroups>(acc, tile + block * kGemmBlockBytes, atom_bytes, rows);
  }
}

// The same by wgmma.
template <class C, int Mt>
__device__ __forceinline__ void multiply_stage_wgmma(float (&acc)[2][C::kGroups][4], uint32_t tile, uint32_t atom_bytes,
                                                     uint32_t inputs, int blocks) {
  inputs = __shfl_sync(~0u, inputs, 0);  // visibly uniform
  for (int block = 0; block < blocks; ++block) {
    uint4 w[Mt][4];
#pragma unroll
    for (int mt = 0; mt < Mt; ++mt)
#pragma unroll
      for (int step = 0; step < 4; ++step)
        w[mt][step] = load_shared_128(tile + mt * atom_bytes + block * kGemmBlockBytes + step * kGemmStepBytes);
    const uint64_t x = wgmma_swizzled_descriptor(inputs + block * C::kInputBlock, 1024, 16);
#pragma unroll
    for (int mt = 0; mt < Mt; ++mt) wgmma_settle(acc[mt]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step)
#pragma unroll
      for (int mt = 0; mt < Mt; ++mt) {
        const uint32_t fragment[4] = {w[mt][step].x, w[mt][step].y, w[mt][step].z, w[mt][step].w};
        wgmma_add<C::kGroups>(acc[mt], fragment, x + 2 * step);  // 32 bytes on
      }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int mt = 0; mt < Mt; ++mt) wgmma_settle(acc[mt]);
  }
}

// All of a unit's K; `mine`: atoms of this warp's team.
template <class C>
__device__ __forceinline__ void multiply_unit(const GemmKernelArgs& a, GemmRing& ring, const GemmUnit& u, int mine,
                                              float (&acc)[2][C::kGroups][4]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t atom_bytes = u.side * kGemmBlockBytes;
  const uint32_t place = warp / 4 * 2 * atom_bytes + warp % 4 * kGemmTileBytes + lane * 16;
  for (int k = u.k_begin; k < u.k_end; k += u.side) {
    const int blocks = min(u.side, u.k_end - k);
    barrier_wait(ring.full(), ring.parity);
    const uint32_t tile = ring.data() + place, inputs = ring.data() + a.weight_blocks * kGemmBlockBytes;
    if constexpr (C::kWgmma) {
      if (mine == 2)
        multiply_stage_wgmma<C, 2>(acc, tile, atom_bytes, inputs, blocks);
      else if (mine == 1)
        multiply_stage_wgmma<C, 1>(acc, tile, atom_bytes, inputs, blocks);
    } else {
      if (mine == 2)
        multiply_stage<C, 2>(acc, tile, atom_bytes, inputs, blocks);
      else if (mine == 1)
        multiply_stage<C, 1>(acc, tile, atom_bytes, inputs, blocks);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty());
    ring.next();
  }
}

// --- what becomes of the sums ---

inline constexpr int kOutputPitch =
    kGemmBlockRows + 2;  // floats of a batch row's outputs of one atom, in shared memory

__device__ inline void store_bf16(bf16* p, const float (&v)[8], int n) {
  if (n == 8 && (reinterpret_cast<uintptr_t>(p) & 15) == 0) {
    *reinterpret_cast<uint4*>(p) = make_uint4(pack_bf16_pair(v[0], v[1]), pack_bf16_pair(v[2], v[3]),
                                              pack_bf16_pair(v[4], v[5]), pack_bf16_pair(v[6], v[7]));
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < n) p[i] = __float2bfloat16_rn(v[i]);
}

__device__ inline void store_f32(float* p, const float (&v)[8], int n) {
  if (n == 8 && (reinterpret_cast<uintptr_t>(p) & 15) == 0) {
    *reinterpret_cast<float4*>(p) = make_float4(v[0], v[1], v[2], v[3]);
    *reinterpret_cast<float4*>(p + 4) = make_float4(v[4], v[5], v[6], v[7]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < n) p[i] = v[i];
}

// Pairs, turned by the row's angles; o: the first one's place in the group.
__device__ inline void store_turned(const GemmKernelArgs& a, int64_t row, int group, int o, const float (&v)[8],
                                    int n) {
  const GemmOutput& out = a.out;
  const int pairs = (a.group_rows - out.plain_rows) / 2, first = (o - out.plain_rows) / 2;
  const float2* turns = static_cast<const float2*>(out.turns) + row * pairs;
  bf16* to = static_cast<bf16*>(out.rotated) + row * out.rotated_row_stride + group * out.rotated_group_stride;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (2 * i >= n) break;
    const int pair = first + i;
    const float2 turned = rotate_pair(v[2 * i], v[2 * i + 1], turns[pair]);
    to[out.interleaved ? 2 * pair : pair] = __float2bfloat16_rn(turned.x);
    to[out.interleaved ? 2 * pair + 1 : pair + pairs] = __float2bfloat16_rn(turned.y);
  }
}

// n ≤ 8 neighbouring outputs of one batch row, from output o of the group.
__device__ inline void store_outputs(const GemmKernelArgs& a, int64_t row, int group, int o, const float (&v)[8],
                                     int n) {
  const GemmOutput& out = a.out;
  const int64_t at = row * out.row_stride + group * out.group_stride;
  if (out.store == GemmStore::kF32) {
    store_f32(static_cast<float*>(out.data) + at + o, v, n);
  } else if (out.store == GemmStore::kSilu) {
    bf16* p = static_cast<bf16*>(out.data) + at + o / 2;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (2 * i < n) p[i] = __float2bfloat16_rn(silu_times(v[2 * i], v[2 * i + 1]));
  } else if (out.store == GemmStore::kRope && o >= out.plain_rows) {
    store_turned(a, row, group, o, v, n);
  } else {
    store_bf16(static_cast<bf16*>(out.data) + at + o, v, n);
  }
}

// Puts a tile's sums of 8 batch rows where store_atom and rank_atom find them: d.x, d.z are two neighbouring outputs of
// one row, d.y, d.w those of the next.
__device__ inline void put(float* outputs, int g, const float4& d) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4 * 2, column = g * 8 + lane % 4 * 2;
  *reinterpret_cast<float2*>(outputs + column * kOutputPitch + row) = make_float2(d.x, d.z);
  *reinterpret_cast<float2*>(outputs + (column + 1) * kOutputPitch + row) = make_float2(d.y, d.w);
}

// Stores an atom's outputs, of the groups of 8 rows that this CTA adds up.
template <class C>
__device__ __forceinline__ void store_atom(const GemmKernelArgs& a, const float* outputs, const GemmUnit& u, int atom) {
  const int first = (u.row_block + atom - u.group * a.group_blocks) * kGemmBlockRows;
  for (int i = threadIdx.x; i < u.count * 8; i += C::kWarps * 32) {
    const int column = i / 8, o = first + i % 8 * 8;
    if (column / 8 % a.slices != u.slice || o >= a.group_rows) continue;
    float v[8];
#pragma unroll
    for (int j = 0; j < 4; ++j)
      *reinterpret_cast<float2*>(v + 2 * j) =
          *reinterpret_cast<const float2*>(outputs + column * kOutputPitch + i % 8 * 8 + 2 * j);
    store_outputs(a, a.first_row + u.column_tile * C::kRows + column, u.group, o, v, min(8, a.group_rows - o));
  }
}

// The head, an atom at a time: each row's largest logit with its id, the sum of exp beside it, and the logits; of the
// groups of 8 rows that this CTA adds up.
template <class C>
__device__ __forceinline__ void rank_atom(const GemmKernelArgs& a, const float* outputs, const GemmUnit& u, int atom) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, block = u.row_block + atom;
  const int id = block * kGemmBlockRows + 2 * lane;
  for (int column = warp; column < u.count; column += C::kWarps) {
    if (column / 8 % a.slices != u.slice) continue;
    const int64_t row = a.first_row + u.column_tile * C::kRows + column;
    const float2 v = *reinterpret_cast<const float2*>(outputs + column * kOutputPitch + 2 * lane);
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

template <class C>
__device__ __forceinline__ void pass_on(const GemmKernelArgs& a, const float* outputs, const GemmUnit& u, int atom) {
  named_barrier(kConsumerBarrier, C::kWarps * 32);
  if (a.out.store == GemmStore::kHead)
    rank_atom<C>(a, outputs, u, atom);
  else
    store_atom<C>(a, outputs, u, atom);
  named_barrier(kConsumerBarrier, C::kWarps * 32);
}

__device__ inline int64_t partial_at(const GemmKernelArgs& a, const GemmUnit& u, int slice, int atom, int groups) {
  const int64_t block = static_cast<int64_t>(slice) * a.row_blocks + u.row_block + atom;
  return ((block * a.column_tiles + u.column_tile) * kGemmTiles + threadIdx.x / 32 % 4) * groups * 32 +
         threadIdx.x % 32;
}

__device__ inline uint32_t* done_of(const GemmKernelArgs& a, const GemmUnit& u, int atom) {
  return a.done + static_cast<int64_t>(u.row_block + atom) * a.column_tiles + u.column_tile;
}

// Where K is sliced: stores this CTA's sums of a slice and counts them.
template <class C>
__device__ __forceinline__ void share_slice(const GemmKernelArgs& a, const GemmUnit& u, int mine,
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
  if (static_cast<int>(threadIdx.x) < u.atoms) add_release(done_of(a, u, threadIdx.x), 1);
}

__device__ inline float4 add_slices(const GemmKernelArgs& a, const float4* from, int64_t slice_step) {
  constexpr int kFlight = 8;  // loads on their way together
  float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
  for (int s = 0; s < a.slices; s += kFlight) {
    float4 v[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i)
      if (s + i < a.slices) v[i] = __ldcg(from + (s + i) * slice_step);
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      if (s + i >= a.slices) break;
      sum.x = __fadd_rn(sum.x, v[i].x);
      sum.y = __fadd_rn(sum.y, v[i].y);
      sum.z = __fadd_rn(sum.z, v[i].z);
      sum.w = __fadd_rn(sum.w, v[i].w);
    }
  }
  return sum;
}

// CTAs that add up an atom's slices: those of the first ones.
__device__ inline int merging_slices(const GemmKernelArgs& a, const GemmUnit& u) {
  return min((u.count + 7) / 8, a.slices);
}

// Whether all slices of a unit's atoms have been counted, or, with `wait`, once they have. Consumer threads agree.
template <class C>
__device__ __forceinline__ bool slices_are_there(const GemmKernelArgs& a, uint8_t* smem, const GemmUnit& u, bool wait) {
  if (u.slice >= merging_slices(a, u)) return true;  // the counter may be clear again
  int* flag = reinterpret_cast<int*>(smem + kGemmFlagOffset);
  if (threadIdx.x < 32) {
    const int atom = min(static_cast<int>(threadIdx.x), u.atoms - 1);
    bool there;
    do {
      there = load_acquire(done_of(a, u, atom)) >= static_cast<uint32_t>(a.slices);
    } while (wait && !there);
    there = __all_sync(~0u, there);
    if (threadIdx.x == 0) *flag = there;
  }
  named_barrier(kConsumerBarrier, C::kWarps * 32);
  const bool there = *flag;
  named_barrier(kConsumerBarrier, C::kWarps * 32);
  return there;
}

// Adds the slices of a unit's atoms and passes the sums on: the CTA of slice s those of every slices-th group of 8
// rows. The last one to come leaves the counter clear.
template <class C>
__device__ __forceinline__ void merge_unit(const GemmKernelArgs& a, float* outputs, const GemmUnit& u) {
  const int team = threadIdx.x / 128, groups = (u.count + 7) / 8, readers = merging_slices(a, u);
  const int64_t slice_step = static_cast<int64_t>(a.row_blocks) * a.column_tiles * kGemmTiles * C::kGroups * 32;
  if (u.slice >= readers) return;
  if (static_cast<int>(threadIdx.x) < u.atoms) {
    uint32_t* done = done_of(a, u, threadIdx.x);
    if (atomicAdd(done, 1) == static_cast<uint32_t>(a.slices + readers) - 1) *done = 0;
  }
  for (int atom = 0; atom < u.atoms; ++atom) {
    const float4* from = a.partial + partial_at(a, u, 0, atom, C::kGroups);
    for (int g = u.slice + team * a.slices; g < groups; g += C::kTeams * a.slices)
      put(outputs, g, add_slices(a, from + g * 32, slice_step));
    pass_on<C>(a, outputs, u, atom);
  }
}

// Where K is whole: passes the sums on.
template <class C>
__device__ __forceinline__ void finish_unit(const GemmKernelArgs& a, float* outputs, const GemmUnit& u,
                                            const float (&acc)[2][C::kGroups][4]) {
  const int team = threadIdx.x / 128;
#pragma unroll
  for (int mt = 0; mt < 2; ++mt)
    for (int t = 0; t < C::kTeams; ++t) {
      const int atom = 2 * t + mt;
      if (atom >= u.atoms) continue;
      if (team == t) {
#pragma unroll
        for (int g = 0; g < C::kGroups; ++g)
          put(outputs, g, make_float4(acc[mt][g][0], acc[mt][g][1], acc[mt][g][2], acc[mt][g][3]));
      }
      pass_on<C>(a, outputs, u, atom);
    }
}

// --- roles ---

// Merging waits for nobody before the CTA has counted all its own sums, so CTAs can't wait in a circle; earlier ones
// are merged as soon as they are there.
template <class C>
__device__ __forceinline__ void consume_gemm(const GemmKernelArgs& a, GemmRing& ring, uint8_t* smem) {
  const int team = threadIdx.x / 128;
  float* outputs = reinterpret_cast<float*>(smem + kGemmBarrierBytes);
  GemmWalk<C> merged(a);
  for (GemmWalk<C> walk(a); !walk.done();) {
    const int before = walk.at;
    const GemmUnit u = walk.next(a);
    const int mine = min(max(u.atoms - 2 * team, 0), 2);
    float acc[2][C::kGroups][4] = {};
    multiply_unit<C>(a, ring, u, mine, acc);
    if (a.slices == 1) {
      finish_unit<C>(a, outputs, u, acc);
      continue;
    }
    share_slice<C>(a, u, mine, acc);
    if (walk.done()) break;
    GemmWalk<C> ahead = merged;
    if (ahead.at >= before) continue;
    const GemmUnit oldest = ahead.next(a);
    if (!slices_are_there<C>(a, smem, oldest, false)) continue;
    merge_unit<C>(a, outputs, oldest);
    merged = ahead;
  }
  if (a.slices == 1) return;
  while (!merged.done()) {
    const GemmUnit u = merged.next(a);
    slices_are_there<C>(a, smem, u, true);
    merge_unit<C>(a, outputs, u);
  }
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

// One lane; rows that the batch does not have arrive as zeros.
template <class C>
__device__ __forceinline__ void bring_inputs(const GemmKernelArgs& a, const void* map, GemmRing& ring) {
  for_each_gemm_unit<C>(a, [&](const GemmUnit& u) {
    const int row = a.first_row + u.column_tile * C::kRows, column = u.group * a.x_group;
    for (int k = u.k_begin; k < u.k_end; k += u.side) {
      const int blocks = min(u.side, u.k_end - k);
      barrier_wait(ring.empty(), ring.parity ^ 1);
      barrier_arrive_expect(ring.full(), blocks * C::kInputBlock);
      for (int block = 0; block < blocks; ++block)
        tensor_copy(ring.data() + a.weight_blocks * kGemmBlockBytes + block * C::kInputBlock, map,
                    column + (k + block) * kGemmBlockK, row, ring.full());
      ring.next();
    }
  });
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    gemm_kernel(const __grid_constant__ GemmKernelArgs a, const __grid_constant__ CUtensorMap x) {
  extern __shared__ __align__(1024) uint8_t smem[];
  if constexpr (C::kWgmma && !kHasWgmma) {
    __trap();  // the host does not start it there
  } else {
    const int warp = threadIdx.x / 32;
    GemmRing ring{shared_address(smem + a.ring_offset), shared_address(smem), a.ring_stages, a.stage_bytes};
    if (threadIdx.x == 0) {
      for (int s = 0; s < a.ring_stages; ++s) {
        barrier_init(ring.bars + s * 16, 2);  // full: weights and inputs
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
    else if (threadIdx.x % 32 == 0)
      bring_inputs<C>(a, &x, ring);
  }
}

}  // namespace ddtree::cuda
