// What:    out[t] = Σ over the experts e of token t, ascending: w[t,e] · W2[e]·(silu(Wg[e]·x[t]) ⊙ (Wu[e]·x[t]))
// Shapes:  x [T, D] bf16 · ids [T, K], −1: none · W packed INT4 (layout.h) · h [T·K, I], y [T·K, D] bf16 by slot · out
// [T, D] Mapping: one persistent CTA an SM: 8 consumer warps, one that streams weights, three that bring activations or
// finish
//          sums. CTAs claim units (plan.h), all of gate_up, then all of down, and stream them through one ring
//          of stages that never drains: the weight warp waits for nothing but a free stage. Down waits for gate_up by
//          one counter a tile. The lists (tokens of each expert) are built by every CTA for itself, in shared memory.
// Bound:   bytes = active experts · 3·D·I·(4 + 16/32)/8 once; arithmetic 1440 cycles a stage of 65,536 weights on an SM
//          against about 1900 for its bytes (H200, ≤ 8 tokens a tile): docs/kernels/experts.md
// Seen:    bench/results/h200/experts*.json
// Limits:  plan.h check_expert_shape; rows a launch: max_launch_rows
//
// A token's bits depend on its own row only. Every output is one chain per segment of K: per group of 32, t = two
// m16n8k16 steps over q − 8 (exact in bf16), acc = fma(scale, t, acc); segments in order; experts ascending. Columns of
// an MMA do not see each other, and wgmma gives the bits of mma.sync (tests/gpu checks that), so tile sizes, modes and
// neighbours cannot show.
#pragma once

#include "backend/cuda/moe/layout.h"
#include "backend/cuda/moe/plan.h"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/wgmma.cuh"

namespace ddtree::cuda {

struct ExpertKernelArgs {
  PhasePlan phase[2];
  const uint8_t* weights[2];   // packed gate_up, down
  const bf16* x;               // [rows, hidden]
  const int32_t* ids;          // [rows, top_k]
  const float* route_weights;  // [rows, top_k]
  bf16* h;                     // [rows · top_k, inter]
  bf16* y;                     // [rows · top_k, hidden]
  bf16* out;                   // [rows, hidden]
  const bf16* shared;          // [rows, hidden] to add behind the experts, or null
  int32_t* slot;               // [rows, top_k]
  uint32_t* claimed;           // units that CTAs have taken beyond their first; zero between launches
  uint32_t* ready;             // [tiles] finished 16-row tiles of gate_up; zero between launches
  int32_t rows, top_k, experts, hidden, inter;
  uint32_t top_k_inverse;  // ceil(2³² / top_k): i / top_k without a division
  int32_t tiles, tiles_offset, tokens_offset, ring_offset, ring_stages;
};

// n tokens of one expert, in slots slot0 … slot0 + n − 1; slots are ordered by expert, then token.
struct TokenTile {
  uint16_t expert, n;
  uint32_t slot0;
};

inline constexpr int kConsumers = 8;
inline constexpr int kHelpers = 3;
inline constexpr int kExpertThreads = (kConsumers + 1 + kHelpers) * 32;

// The first kBarrierBytes of shared memory: pairs (full, empty) of barriers of the ring, the partial sums and the queue
// of units; the queue; the carries of the lists' scan.
inline constexpr int kPartialBarOffset = kMaxRingStages * 16;
inline constexpr int kQueueBarOffset = kPartialBarOffset + 2 * 16;
inline constexpr int kQueueOffset = kQueueBarOffset + 4 * 16;
inline constexpr int kCarryOffset = kQueueOffset + 16;
static_assert(kCarryOffset + kExpertThreads / 32 * 8 <= kBarrierBytes);

// kMt: 16-row tiles of a consumer warp; kGroups: of 8 tokens, at most; kStatic: units are dealt, not claimed.
template <int Mt>
struct SplitConfig {
  static constexpr bool kSplit = true, kCoreMatrices = false, kStatic = Mt == 1;
  static constexpr int kMt = Mt, kTokens = 2 * Mt, kGroups = 1;
  static constexpr int kStage = (kStageWeightBytes + kTokens * (16 / Mt * kBlockK * 2 + 16) + 127) / 128 * 128;
};
// Above 16 tokens a tile goes by wgmma, which wants the activations as core matrices (8 tokens × 16 bytes).
template <int Groups>
struct WideConfig {
  static constexpr bool kSplit = false, kCoreMatrices = Groups > 2, kStatic = false;
  static constexpr int kMt = 4, kTokens = 8 * Groups, kGroups = Groups;
  static constexpr int kStage =
      (kStageWeightBytes + kTokens * (kBlockK * 2 + (kCoreMatrices ? 0 : 16)) + 127) / 128 * 128;
};

// --- arithmetic ---

// A pair of weights, q − 8 in bf16: 16 + q from the bits, then an exact subtraction.
__device__ inline uint32_t weight_pair(uint32_t w) {
  uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(w), "n"(0x00780078), "r"(0x41804180));
  asm("sub.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(r), "r"(0x41C041C0));
  return r;
}
__device__ inline void dequantise(uint32_t* a, uint32_t w) {
  a[0] = weight_pair(w);
  a[1] = weight_pair(w >> 4);
  a[2] = weight_pair(w >> 8);
  a[3] = weight_pair(__funnelshift_r(w, w, 12));
}

// Scales of rows g and g + 8 for group j of a block. s: groups 0 1, 2 3 of row g, then of row g + 8.
__device__ inline float2 row_scales(const uint4& s, int j) {
  const uint32_t lo = j < 2 ? s.x : s.y, hi = j < 2 ? s.z : s.w;
  return make_float2(__uint_as_float(j & 1 ? lo & 0xffff0000u : lo << 16),
                     __uint_as_float(j & 1 ? hi & 0xffff0000u : hi << 16));
}

// acc += W[Mt tiles, 128 K] · activations, G groups of 8 tokens. words, scales: this lane's vectors of the first tile;
// b: this lane's ldmatrix row of each token group, groups of 32 K b_step apart.
template <int Mt, int G>
__device__ __forceinline__ void multiply_mma(float (&acc)[Mt][4 * G], uint32_t words, uint32_t scales,
                                             const uint32_t (&b)[G], uint32_t b_step) {
  const float zero[4] = {0.f, 0.f, 0.f, 0.f};
  uint4 s[Mt], w[2][Mt];
  uint32_t act[2][G][4];
#pragma unroll
  for (int mt = 0; mt < Mt; ++mt) w[0][mt] = load_shared_128(words + mt * kTileBytes);
#pragma unroll
  for (int n = 0; n < G; ++n) load_matrix_x4(act[0][n], b[n]);
#pragma unroll
  for (int mt = 0; mt < Mt; ++mt) s[mt] = load_shared_128(scales + mt * kTileBytes);
#pragma unroll
  for (int j = 0; j < 4; ++j) {  // groups of 32; what the next one needs is on its way
    if (j == 0) {
#pragma unroll
      for (int mt = 0; mt < Mt; ++mt) w[1][mt] = load_shared_128(words + mt * kTileBytes + 512);
    }
    if (j < 3) {
#pragma unroll
      for (int n = 0; n < G; ++n) load_matrix_x4(act[(j + 1) % 2][n], b[n] + (j + 1) * b_step);
    }
#pragma unroll
    for (int mt = 0; mt < Mt; ++mt) {
      const uint4& v = w[j / 2][mt];
      uint32_t a[8];
      dequantise(a, j % 2 ? v.z : v.x);
      dequantise(a + 4, j % 2 ? v.w : v.y);
      const float2 scale = row_scales(s[mt], j);
#pragma unroll
      for (int n = 0; n < G; ++n) {
        float t[4];
        mma_m16n8k16(t, a, act[j % 2][n][0], act[j % 2][n][1], zero);
        mma_m16n8k16(t, a + 4, act[j % 2][n][2], act[j % 2][n][3], t);
#pragma unroll
        for (int r = 0; r < 4; ++r) acc[mt][4 * n + r] = fmaf(r < 2 ? scale.x : scale.y, t[r], acc[mt][4 * n + r]);
      }
    }
  }
}

// What a warp has of a stage before its first wgmma: scales of its tiles, the fragments of the first step, and the
// words of the first four.
template <int Mt>
struct WgmmaOperands {
  uint4 scales[Mt];
  uint4 words[2];    // of two steps each
  uint32_t a[2][8];  // of even and odd steps

  __device__ __forceinline__ void load_words(uint32_t block, int lane, int step) {
    words[step / 2 % 2] = load_shared_128(block + step / 4 * kTileBytes + step % 4 / 2 * 512 + lane * 16);
  }
  __device__ __forceinline__ void load(uint32_t block, int lane) {
    load_words(block, lane, 0);
    load_words(block, lane, 2);
#pragma unroll
    for (int mt = 0; mt < Mt; ++mt)
      scales[mt] = load_shared_128(block + mt * kTileBytes + kTileNibbleBytes + lane / 4 * 16);
    dequantise(a[0], words[0].x);
    dequantise(a[0] + 4, words[0].y);
  }
};

// The same by wgmma, bit for bit. A step is one tile × one group of 32; its sums are scaled while the next one's are on
// the tensor cores, and its words come two steps ahead. `prefetch` fills `in` for the next stage meanwhile.
template <int Mt, int G, class Prefetch>
__device__ __forceinline__ void multiply_wgmma(float (&acc)[Mt][4 * G], WgmmaOperands<Mt>& in, uint32_t block, int lane,
                                               uint64_t b, uint32_t piece, Prefetch prefetch) {
  constexpr int kSteps = 4 * Mt;
  float t[2][4 * G];
  const auto scale_step = [&](int i, const uint4& s) {
    const float2 scale = row_scales(s, i % 4);
    wgmma_settle(t[i % 2]);
#pragma unroll
    for (int r = 0; r < 4 * G; ++r) acc[i / 4][r] = fmaf(r & 2 ? scale.y : scale.x, t[i % 2][r], acc[i / 4][r]);
  };
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    uint32_t* a = in.a[i % 2];
    const uint4& words = in.words[i / 2 % 2];
    if (i > 0) {
      dequantise(a, i % 2 ? words.z : words.x);
      dequantise(a + 4, i % 2 ? words.w : words.y);
    }
    if (i % 2 == 1 && i + 3 < kSteps) in.load_words(block, lane, i + 3);
    wgmma_fence();
    wgmma_m64k16<G, false>(t[i % 2], a, b + i % 4 * 4 * piece);
    wgmma_m64k16<G, true>(t[i % 2], a + 4, b + (i % 4 * 4 + 2) * piece);
    wgmma_commit();
    if (i > 0) {
      wgmma_wait<1>();
      scale_step(i - 1, in.scales[(i - 1) / 4]);
    }
  }
  const uint4 last = in.scales[Mt - 1];
  prefetch();
  wgmma_wait<0>();
  scale_step(kSteps - 1, last);
}

// Explicit roundings: the same bits wherever it is inlined.
__device__ __forceinline__ bf16 silu_mul(float gate, float up) {
  const float e = exp2f(__fmul_rn(gate, -1.4426950408889634f));
  return __float2bfloat16_rn(__fmul_rn(__fdividef(gate, __fadd_rn(1.f, e)), up));
}

__device__ inline uint32_t pack_bf16(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// Results in a row, as one store.
template <class T, int N>
__device__ __forceinline__ void store_values(bf16* p, const T (&v)[N]) {
  if constexpr (sizeof v == 16)
    *reinterpret_cast<uint4*>(p) = *reinterpret_cast<const uint4*>(v);
  else if constexpr (sizeof v == 8)
    *reinterpret_cast<uint2*>(p) = *reinterpret_cast<const uint2*>(v);
  else if constexpr (sizeof v == 4)
    *reinterpret_cast<uint32_t*>(p) = *reinterpret_cast<const uint32_t*>(v);
  else
    *p = v[0];
}

template <int Mt, int R>
__device__ __forceinline__ void add_segment(float (&total)[Mt][R], const float (&acc)[Mt][R]) {
#pragma unroll
  for (int mt = 0; mt < Mt; ++mt)
#pragma unroll
    for (int r = 0; r < R; ++r) total[mt][r] = __fadd_rn(total[mt][r], acc[mt][r]);
}

// --- lists ---

__device__ inline int divide_by_top_k(const ExpertKernelArgs& a, int i) {
  return a.top_k == 1 ? i : static_cast<int>(__umulhi(i, a.top_k_inverse));
}

// Every CTA lists the tokens of all experts for itself: a bit per (expert, row), so that ranks don't depend on timing.
// Scratch is where the ring will be.
struct ListScratch {
  int pitch;         // odd, words an expert
  uint32_t* bits;    // [experts, pitch]
  uint32_t* first;   // [experts] tokens, then first slot
  uint16_t* before;  // [experts, pitch] tokens in earlier words
  uint16_t* ids;     // [slots]; kMaxExperts: none

  __device__ ListScratch(const ExpertKernelArgs& a, uint8_t* smem) {
    pitch = (a.rows + 31) / 32 | 1;
    bits = reinterpret_cast<uint32_t*>(smem + a.ring_offset);
    first = bits + a.experts * pitch;
    before = reinterpret_cast<uint16_t*>(first + a.experts);
    ids = before + a.experts * pitch;
  }
};

// Sets the bits and keeps the ids. The first ids are on their way while the bits are cleared.
__device__ inline void mark_tokens(const ExpertKernelArgs& a, const ListScratch& l) {
  constexpr int kBatch = 8;  // loads in flight
  const int slots = a.rows * a.top_k;
  for (int base = 0; base < slots; base += kBatch * kExpertThreads) {
    int id[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kExpertThreads + threadIdx.x;
      id[j] = i < slots ? a.ids[i] : -1;
    }
    if (base == 0) {
      for (int i = threadIdx.x; i < a.experts * l.pitch; i += kExpertThreads) l.bits[i] = 0;
      __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int i = base + j * kExpertThreads + threadIdx.x, t = divide_by_top_k(a, i);
      const bool valid = id[j] >= 0 && id[j] < a.experts;
      if (valid) atomicOr(&l.bits[id[j] * l.pitch + t / 32], 1u << (t & 31));
      if (i < slots) l.ids[i] = static_cast<uint16_t>(valid ? id[j] : kMaxExperts);
    }
  }
}

// Counts, first slots and tiles of all experts; returns the number of tiles.
__device__ inline int lay_out_tiles(const ExpertKernelArgs& a, uint8_t* smem, const ListScratch& l, int tile_tokens) {
  const int tid = threadIdx.x, words = (a.rows + 31) / 32;
  const int per_thread = (a.experts + kExpertThreads - 1) / kExpertThreads, e0 = tid * per_thread;
  const int e1 = min(e0 + per_thread, a.experts);
  int n_sum = 0, tile_sum = 0;
  for (int e = e0; e < e1; ++e) {
    int n = 0;
#pragma unroll 4
    for (int w = 0; w < words; ++w) {
      l.before[e * l.pitch + w] = static_cast<uint16_t>(n);
      n += __popc(l.bits[e * l.pitch + w]);
    }
    l.first[e] = n;
    n_sum += n;
    tile_sum += (n + tile_tokens - 1) / tile_tokens;
  }
  int n_end = n_sum, tile_end = tile_sum;  // inclusive scans over the threads
  for (int d = 1; d < 32; d *= 2) {
    const int u = __shfl_up_sync(~0u, n_end, d), v = __shfl_up_sync(~0u, tile_end, d);
    if (tid % 32 >= d) n_end += u, tile_end += v;
  }
  uint2* carry = reinterpret_cast<uint2*>(smem + kCarryOffset);
  if (tid % 32 == 31) carry[tid / 32] = make_uint2(n_end, tile_end);
  __syncthreads();
  int all_tiles = 0;
#pragma unroll
  for (int w = 0; w < kExpertThreads / 32; ++w) {
    const uint2 c = carry[w];
    if (w < tid / 32) n_end += c.x, tile_end += c.y;
    all_tiles += c.y;
  }
  TokenTile* tiles = reinterpret_cast<TokenTile*>(smem + a.tiles_offset);
  int slot = n_end - n_sum, tile = tile_end - tile_sum;
  for (int e = e0; e < e1; ++e) {
    const int n = l.first[e];
    l.first[e] = slot;
    for (int i = 0; i < n; i += tile_tokens)
      tiles[tile++] = {static_cast<uint16_t>(e), static_cast<uint16_t>(min(tile_tokens, n - i)),
                       static_cast<uint32_t>(slot + i)};
    slot += n;
  }
  return all_tiles;
}

// The row of every slot, and this CTA's share of the slots of every (row, choice).
__device__ inline void list_tokens(const ExpertKernelArgs& a, uint8_t* smem, const ListScratch& l) {
  const int slots = a.rows * a.top_k, share = (slots + gridDim.x - 1) / gridDim.x;
  const int share_begin = blockIdx.x * share, share_end = share_begin + share;
  uint16_t* tokens = reinterpret_cast<uint16_t*>(smem + a.tokens_offset);
#pragma unroll 4
  for (int i = threadIdx.x; i < slots; i += kExpertThreads) {
    const int e = l.ids[i], t = divide_by_top_k(a, i), word = e * l.pitch + t / 32;
    int slot = -1;
    if (e < kMaxExperts) {
      slot = l.first[e] + l.before[word] + __popc(l.bits[word] & ((1u << (t & 31)) - 1));
      tokens[slot] = static_cast<uint16_t>(t);
    }
    if (i >= share_begin && i < share_end) a.slot[i] = slot;
  }
}

__device__ inline int build_lists(const ExpertKernelArgs& a, uint8_t* smem, int tile_tokens) {
  const ListScratch l(a, smem);
  mark_tokens(a, l);
  __syncthreads();
  const int tiles = lay_out_tiles(a, smem, l, tile_tokens);
  __syncthreads();
  list_tokens(a, smem, l);
  proxy_fence();  // the scratch becomes the ring
  __syncthreads();
  return tiles;
}

// --- schedule ---

// Units are claimed one by one, gate_up of all tiles first, then down, each in ascending order; so whatever a unit
// waits for is in work or done. A CTA's first unit is its index. The weight warp claims and queues them for the other
// warps.
struct Unit {
  PhasePlan plan;
  int phase = 0, tile_index = 0, index = 0;  // index: among the tile's units
  int count = 0;                             // running number in this CTA
  TokenTile tile{};
  int tiles16 = 0;  // 16-row tiles that exist
};

inline constexpr int kQueue = 4;  // units queued beyond the one in work

__device__ inline uint32_t queue_bar(uint32_t bars, int slot) { return bars + kQueueBarOffset + slot * 16; }

// A queue entry: phase, tile, index; kNoUnit ends the walk.
inline constexpr uint32_t kNoUnit = ~0u;

__device__ inline uint32_t encode_unit(const ExpertKernelArgs& a, int n_tiles, int u) {
  const int units0 = n_tiles * a.phase[0].units, phase = u >= units0;
  if (phase) u -= units0;
  const int tile = u / a.phase[phase].units, index = u - tile * a.phase[phase].units;
  return static_cast<uint32_t>(phase) << 31 | static_cast<uint32_t>(tile) << 16 | static_cast<uint32_t>(index);
}

// Makes `unit` that of the entry. The plan is read once a phase: kept in registers, it costs a unit nothing.
__device__ __forceinline__ void decode_unit(const ExpertKernelArgs& a, const uint8_t* smem, uint32_t entry,
                                            Unit& unit) {
  const int phase = entry >> 31;
  if (phase != unit.phase) unit.phase = phase, unit.plan = a.phase[1];
  unit.tile_index = entry >> 16 & 0x7fff;
  unit.index = entry & 0xffff;
  unit.tile = reinterpret_cast<const TokenTile*>(smem + a.tiles_offset)[unit.tile_index];
  unit.tiles16 = min(unit.plan.unit_tiles, unit.plan.row_blocks * kTiles - unit.index * unit.plan.unit_tiles);
}

// The weight warp's walk: claims, queues, visits. Claims are made two units ahead, so that their way to memory and back
// does not show; with few units (Static) they are dealt instead, as nobody should take more than a fair share early.
template <bool Static, class Visit>
__device__ __forceinline__ void claim_units(const ExpertKernelArgs& a, uint8_t* smem, int n_tiles, Visit visit) {
  const int lane = threadIdx.x % 32, all = n_tiles * (a.phase[0].units + a.phase[1].units);
  const uint32_t bars = shared_address(smem);
  volatile uint32_t* queue = reinterpret_cast<volatile uint32_t*>(smem + kQueueOffset);
  const auto claim = [&] { return lane == 0 ? static_cast<int>(gridDim.x + atomicAdd(a.claimed, 1u)) : 0; };
  int u = blockIdx.x, next = Static ? 0 : claim();
  Unit unit{a.phase[0]};
  for (int count = 0;; ++count) {
    const int slot = count % kQueue;
    barrier_wait(queue_bar(bars, slot) + 8, (count / kQueue & 1) ^ 1);
    const uint32_t entry = u < all ? encode_unit(a, n_tiles, u) : kNoUnit;
    if (lane == 0) {
      queue[slot] = entry;
      barrier_arrive(queue_bar(bars, slot));
    }
    if (entry == kNoUnit) return;
    const int after = Static ? 0 : claim();
    decode_unit(a, smem, entry, unit);
    unit.count = count;
    visit(unit);
    u = Static ? u + static_cast<int>(gridDim.x) : __shfl_sync(~0u, next, 0);
    next = after;
  }
}

// The other warps' walk.
template <class Visit>
__device__ __forceinline__ void for_each_unit(const ExpertKernelArgs& a, const uint8_t* smem, Visit visit) {
  const uint32_t bars = shared_address(smem);
  const volatile uint32_t* queue = reinterpret_cast<const volatile uint32_t*>(smem + kQueueOffset);
  Unit unit{a.phase[0]};
  for (int count = 0;; ++count) {
    const int slot = count % kQueue;
    barrier_wait(queue_bar(bars, slot), count / kQueue & 1);
    const uint32_t entry = queue[slot];
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(queue_bar(bars, slot) + 8);
    if (entry == kNoUnit) return;
    decode_unit(a, smem, entry, unit);
    unit.count = count;
    visit(unit);
  }
}

template <class C>
struct Ring {
  uint32_t base, bars;
  int stages;
  int at = 0;
  uint32_t parity = 0;
  __device__ uint32_t data() const { return base + at * C::kStage; }
  __device__ uint32_t full() const { return bars + at * 16; }
  __device__ uint32_t empty() const { return bars + at * 16 + 8; }
  __device__ void next() {
    if (++at == stages) at = 0, parity ^= 1;
  }
};

// K blocks of a wide unit in the order of its stages: segment after segment.
struct WideWalk {
  int block = 0;
  __device__ void next(const PhasePlan& p) {
    block += p.segments;
    if (block >= p.k_blocks) block = (block & (p.segments - 1)) + 1;
  }
};

__device__ inline uint32_t partial_bar(uint32_t bars, int buffer) { return bars + kPartialBarOffset + buffer * 16; }

// --- consumers ---

// A split unit on one consumer warp: Mt tiles of one segment; the sum goes to a buffer of partial sums.
template <class C, int Mt>
__device__ __forceinline__ void consume_split(const ExpertKernelArgs& a, Ring<C>& ring, uint8_t* smem,
                                              const Unit& unit) {
  const PhasePlan& p = unit.plan;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, n = unit.tile.n;
  const int segment = warp & (p.segments - 1), tile0 = warp / p.segments * Mt;
  const int block_tiles = min(kTiles, p.unit_tiles), block_bytes = block_tiles * kTileBytes;
  const int pitch = p.side * (kBlockK * 2) + 16;
  const uint32_t mine = tile0 / block_tiles * p.side * block_bytes + tile0 % block_tiles * kTileBytes;
  const uint32_t row = lane % 8 < n ? kStageWeightBytes + lane % 8 * pitch + lane / 8 * 16 : 0;
  const uint32_t zeros = shared_address(smem + kBarrierBytes) + lane / 8 * 16;
  float acc[Mt][4] = {};
  for (int s = 0; s < p.stages; ++s) {
    barrier_wait(ring.full(), ring.parity);
    const int blocks = min(p.side, p.k_blocks - s * p.side);
    if (tile0 < unit.tiles16)
      for (int kb = segment; kb < blocks; kb += p.segments) {
        const uint32_t block = ring.data() + mine + kb * block_bytes;
        const uint32_t b[1] = {row ? ring.data() + row + kb * (kBlockK * 2) : zeros};
        multiply_mma<Mt, 1>(acc, block + lane * 16, block + kTileNibbleBytes + g * 16, b, kGroup * 2);
      }
    __syncwarp();
    if (lane == 0) barrier_arrive(ring.empty());
    ring.next();
  }

  const int buffer = unit.count & 1, partial_pitch = p.unit_tiles * kTileRows + 4;
  const uint32_t bar = partial_bar(ring.bars, buffer);
  barrier_wait(bar + 8, ((unit.count >> 1) & 1) ^ 1);
  float* sums = reinterpret_cast<float*>(smem + kPartialOffset) + buffer * (4 * C::kTokens * 132) +
                segment * C::kTokens * partial_pitch + tile0 * kTileRows + g;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    if (2 * c + q >= n) continue;
#pragma unroll
    for (int mt = 0; mt < Mt; ++mt) {
      sums[(2 * c + q) * partial_pitch + mt * kTileRows] = acc[mt][q];
      sums[(2 * c + q) * partial_pitch + mt * kTileRows + 8] = acc[mt][2 + q];
    }
  }
  barrier_arrive(bar);
}

// Stores the results of a warp's Mt tiles from tile0 of the unit on; for gate_up, reports them.
template <int Mt, int G>
__device__ __forceinline__ void store_rows(const ExpertKernelArgs& a, const Unit& unit, int tile0,
                                           const float (&sum)[Mt][4 * G]) {
  const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
  const int tile = unit.index * unit.plan.unit_tiles + tile0, row_block = tile / kTiles, mt0 = tile % kTiles;
  const int width = unit.phase == 0 ? a.inter : a.hidden;
  bf16* row = unit.phase == 0 ? a.h + row_block * 32 + 4 * g + mt0 : a.y + row_block * 64 + 8 * g + 2 * mt0;
  row += static_cast<int64_t>(unit.tile.slot0 + 2 * c) * width;  // of this lane's first token
#pragma unroll
  for (int n = 0; n < G; ++n)
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const int r = 4 * n + q;
      if (n * 8 + 2 * c + q >= unit.tile.n) continue;
      if (unit.phase == 0) {
        alignas(16) bf16 v[Mt];
#pragma unroll
        for (int mt = 0; mt < Mt; ++mt) v[mt] = silu_mul(sum[mt][r], sum[mt][r + 2]);
        store_values(row + (n * 8 + q) * width, v);
      } else {
        alignas(16) __nv_bfloat162 v[Mt];
#pragma unroll
        for (int mt = 0; mt < Mt; ++mt) v[mt] = __floats2bfloat162_rn(sum[mt][r], sum[mt][r + 2]);
        store_values(row + (n * 8 + q) * width, v);
      }
    }
  if (unit.phase == 0) {
    proxy_fence();
    __syncwarp();
    if (lane == 0) add_release(a.ready + unit.tile_index, Mt);
  }
}

// A wide unit on one consumer warp: C::kMt tiles (64 or 32 rows), G ≤ 2 groups of 8 tokens.
template <class C, int G>
__device__ __forceinline__ void consume_wide(const ExpertKernelArgs& a, Ring<C>& ring, uint8_t* smem,
                                             const Unit& unit) {
  constexpr int kMt = 4, kPitch = kBlockK * 2 + 16, kPiece = C::kGroups * 128;
  const PhasePlan& p = unit.plan;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, n = unit.tile.n;
  const bool has_rows = warp * kMt < unit.tiles16;
  uint32_t row[G];
#pragma unroll
  for (int i = 0; i < G; ++i)
    row[i] = kStageWeightBytes + (C::kCoreMatrices ? i * 128 + lane / 8 * kPiece + lane % 8 * 16
                                                   : (i * 8 + lane % 8) * kPitch + lane / 8 * 16);
  const uint32_t zeros = shared_address(smem + kBarrierBytes) + lane / 8 * 16;
  float total[kMt][4 * G] = {};
  for (int segment = 0; segment < p.segments; ++segment) {
    float acc[kMt][4 * G] = {};
    for (int block = segment; block < p.k_blocks; block += p.segments) {
      barrier_wait(ring.full(), ring.parity);
      const uint32_t data = ring.data(), w = data + warp * kMt * kTileBytes;
      if (has_rows) {
        uint32_t b[G];
#pragma unroll
        for (int i = 0; i < G; ++i) b[i] = C::kCoreMatrices || i * 8 + lane % 8 < n ? data + row[i] : zeros;
        multiply_mma<kMt, G>(acc, w + lane * 16, w + kTileNibbleBytes + g * 16, b,
                             C::kCoreMatrices ? 4 * kPiece : kGroup * 2);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty());
      ring.next();
    }
    add_segment(total, acc);
  }
  if (has_rows) store_rows<kMt, G>(a, unit, warp * kMt, total);
}

// The same with more tokens. All four warps of a warpgroup take part, with or without rows of their own.
template <class C, int G>
__device__ __forceinline__ void consume_wgmma(const ExpertKernelArgs& a, Ring<C>& ring, const Unit& unit) {
  constexpr int kMt = C::kMt, kPiece = C::kGroups * 128;
  const PhasePlan& p = unit.plan;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t mine = warp * kMt * kTileBytes;
  float total[kMt][4 * G] = {}, acc[kMt][4 * G] = {};
  WgmmaOperands<kMt> in;
  barrier_wait(ring.full(), ring.parity);
  in.load(ring.data() + mine, lane);
  WideWalk walk;
  for (int s = 0; s < p.stages; ++s) {
    const uint32_t data = ring.data(), used = ring.empty();
    const uint32_t acts = __shfl_sync(~0u, data + kStageWeightBytes, 0);  // the compiler sees that it is uniform
    ring.next();
    multiply_wgmma<kMt, G>(acc, in, data + mine, lane, wgmma_descriptor(acts, kPiece, 128), kPiece >> 4, [&] {
      if (s + 1 == p.stages) return;
      barrier_wait(ring.full(), ring.parity);
      in.load(ring.data() + mine, lane);
    });
    __syncwarp();
    if (lane == 0) barrier_arrive(used);
    const int segment = walk.block & (p.segments - 1);
    walk.next(p);
    if (s + 1 == p.stages || (walk.block & (p.segments - 1)) != segment) {
      add_segment(total, acc);
#pragma unroll
      for (int i = 0; i < kMt * 4 * G; ++i) acc[i / (4 * G)][i % (4 * G)] = 0.f;
    }
  }
  if (warp * kMt < unit.tiles16) store_rows<kMt, G>(a, unit, warp * kMt, total);
}

// A unit whose K is one stage, on one consumer warp: Mt tiles, all segments (one K block each).
template <class C, int Mt>
__device__ __forceinline__ void consume_whole(const ExpertKernelArgs& a, Ring<C>& ring, uint8_t* smem,
                                              const Unit& unit) {
  const PhasePlan& p = unit.plan;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, n = unit.tile.n;
  const int tile0 = warp * Mt, pitch = p.side * (kBlockK * 2) + 16;
  float total[Mt][4] = {};
  barrier_wait(ring.full(), ring.parity);
  const uint32_t w = ring.data() + tile0 / kTiles * p.side * kBlockBytes + tile0 % kTiles * kTileBytes;
  const uint32_t row = ring.data() + kStageWeightBytes + lane % 8 * pitch + lane / 8 * 16;
  const uint32_t zeros = shared_address(smem + kBarrierBytes) + lane / 8 * 16;
  if (tile0 < unit.tiles16)
    for (int block = 0; block < p.k_blocks; ++block) {
      float acc[Mt][4] = {};
      const uint32_t b[1] = {lane % 8 < n ? row + block * (kBlockK * 2) : zeros};
      multiply_mma<Mt, 1>(acc, w + block * kBlockBytes + lane * 16, w + block * kBlockBytes + kTileNibbleBytes + g * 16,
                          b, kGroup * 2);
      add_segment(total, acc);
    }
  __syncwarp();
  if (lane == 0) barrier_arrive(ring.empty());
  ring.next();
  if (tile0 < unit.tiles16) store_rows<Mt, 1>(a, unit, tile0, total);
}

template <class C>
__device__ __forceinline__ void consume(const ExpertKernelArgs& a, Ring<C>& ring, uint8_t* smem, int n_tiles) {
  for_each_unit(a, smem, [&](const Unit& unit) {
    if constexpr (C::kSplit) {
      const PhasePlan& p = unit.plan;
      if (p.walk == Walk::kWhole) {
        if (p.warp_tiles == 4)
          consume_whole<C, 4>(a, ring, smem, unit);
        else if (p.warp_tiles == 2)
          consume_whole<C, 2>(a, ring, smem, unit);
        else
          consume_whole<C, 1>(a, ring, smem, unit);
      } else if (p.walk == Walk::kWide) {
        consume_wide<C, 1>(a, ring, smem, unit);
      } else if (C::kMt == 4 || p.warp_tiles == 4) {
        consume_split<C, 4>(a, ring, smem, unit);
      } else {
        consume_split<C, C::kMt>(a, ring, smem, unit);
      }
    } else {
      const int n = unit.tile.n;
      if (C::kGroups == 1 || n <= 8)
        consume_wide<C, 1>(a, ring, smem, unit);
      else if (C::kGroups == 2 || n <= 16)
        consume_wide<C, 2>(a, ring, smem, unit);
      else if constexpr (C::kGroups > 2) {
        if (n <= 24)
          consume_wgmma<C, 3>(a, ring, unit);
        else
          consume_wgmma<C, 4>(a, ring, unit);
      }
    }
  });
}

// --- producers ---

template <class C>
__device__ __forceinline__ void stream_weights(const ExpertKernelArgs& a, Ring<C>& ring, uint8_t* smem, int n_tiles) {
  const int lane = threadIdx.x % 32;
  const uint64_t policy = evict_first_policy();
  claim_units<C::kStatic>(a, smem, n_tiles, [&](const Unit& unit) {
    const PhasePlan& p = unit.plan;
    const uint8_t* expert =
        a.weights[unit.phase] + static_cast<int64_t>(unit.tile.expert) * p.row_blocks * p.k_blocks * kBlockBytes;
    const int first_tile = unit.index * p.unit_tiles, copies = (unit.tiles16 + kTiles - 1) / kTiles;
    const int64_t row_bytes = static_cast<int64_t>(p.k_blocks) * kBlockBytes;
    WideWalk walk;
    for (int s = 0; s < p.stages; ++s) {
      const int block = p.walk == Walk::kWide ? walk.block : s * p.side, blocks = min(p.side, p.k_blocks - block);
      barrier_wait(ring.empty(), ring.parity ^ 1);
      if (lane == 0) barrier_arrive_expect(ring.full(), blocks * unit.tiles16 * kTileBytes);
      __syncwarp();
      if (C::kSplit && p.unit_tiles < kTiles) {  // part of a row block: one copy a K block
        const int bytes = unit.tiles16 * kTileBytes;
        if (lane < blocks)
          bulk_copy(ring.data() + lane * bytes,
                    expert + first_tile / kTiles * row_bytes + (block + lane) * kBlockBytes +
                        first_tile % kTiles * kTileBytes,
                    bytes, ring.full(), policy);
      } else if (lane < copies) {
        bulk_copy(ring.data() + lane * p.side * kBlockBytes,
                  expert + (first_tile / kTiles + lane) * row_bytes + block * kBlockBytes, blocks * kBlockBytes,
                  ring.full(), policy);
      }
      ring.next();
      walk.next(p);
    }
  });
}

// Tiles below the result have their gate_up complete. Waits until `tile` has; the lanes look at 32 tiles at a time.
__device__ inline int wait_for_gate_up(const ExpertKernelArgs& a, int tile, int n_tiles) {
  const uint32_t want = a.phase[0].row_blocks * kTiles * (a.phase[0].walk == Walk::kSplit ? 2 : 1);
  const int mine = min(tile + static_cast<int>(threadIdx.x % 32), n_tiles - 1);
  for (;;) {
    const uint32_t missing = __ballot_sync(~0u, load_acquire(a.ready + mine) < want);
    if ((missing & 1) == 0) {
      proxy_fence();
      __syncwarp();
      return tile + (missing == 0 ? 32 : __ffs(missing) - 1);
    }
    __nanosleep(20);
  }
}

// One warp brings activations by bulk copies, a row a lane.
template <class C>
__device__ __forceinline__ void bring_rows(const ExpertKernelArgs& a, Ring<C>& ring, const uint8_t* smem, int n_tiles) {
  const int lane = threadIdx.x % 32;
  const uint16_t* tokens = reinterpret_cast<const uint16_t*>(smem + a.tokens_offset);
  const uint64_t policy = evict_last_policy();
  int complete = 0;  // tiles whose gate_up is known to be
  for_each_unit(a, smem, [&](const Unit& unit) {
    const PhasePlan& p = unit.plan;
    const int n = unit.tile.n, pitch = p.side * (kBlockK * 2) + 16;
    if (unit.phase == 1 && unit.tile_index >= complete) complete = wait_for_gate_up(a, unit.tile_index, n_tiles);
    const uint32_t slot = unit.tile.slot0 + min(lane, n - 1);
    const bf16* row = unit.phase == 0 ? a.x + static_cast<int64_t>(tokens[slot]) * a.hidden
                                      : a.h + static_cast<int64_t>(slot) * a.inter;
    WideWalk walk;
    for (int s = 0; s < p.stages; ++s) {
      const int block = p.walk == Walk::kWide ? walk.block : s * p.side, blocks = min(p.side, p.k_blocks - block);
      barrier_wait(ring.empty(), ring.parity ^ 1);
      if (lane == 0) barrier_arrive_expect(ring.full(), n * blocks * kBlockK * 2);
      __syncwarp();
      if (lane < n)
        bulk_copy(ring.data() + kStageWeightBytes + lane * pitch, row + block * kBlockK, blocks * kBlockK * 2,
                  ring.full(), policy);
      ring.next();
      walk.next(p);
    }
  });
}

// Three warps bring activations as core matrices, taking stages in turn. Absent tokens become zeros.
template <class C>
__device__ __forceinline__ void bring_core_matrices(const ExpertKernelArgs& a, Ring<C>& ring, const uint8_t* smem,
                                                    int n_tiles) {
  constexpr int kPiece = C::kGroups * 128;
  const int lane = threadIdx.x % 32;
  const uint16_t* tokens = reinterpret_cast<const uint16_t*>(smem + a.tokens_offset);
  int complete = 0, turn = threadIdx.x / 32 - kConsumers - 1;
  for_each_unit(a, smem, [&](const Unit& unit) {
    const PhasePlan& p = unit.plan;
    const int n = unit.tile.n;
    if (unit.phase == 1 && unit.tile_index >= complete) complete = wait_for_gate_up(a, unit.tile_index, n_tiles);
    const bf16* row[C::kGroups];  // this lane's token of each group of 8; four lanes read 64 bytes in a row
#pragma unroll
    for (int i = 0; i < C::kGroups; ++i) {
      const uint32_t slot = unit.tile.slot0 + min(i * 8 + lane / 4, n - 1);
      row[i] = (unit.phase == 0 ? a.x + static_cast<int64_t>(tokens[slot]) * a.hidden
                                : a.h + static_cast<int64_t>(slot) * a.inter) +
               lane % 4 * 8;
    }
    WideWalk walk;
    for (int s = 0; s < p.stages; ++s, ring.next(), walk.next(p)) {
      if (turn > 0) {
        --turn;
        continue;
      }
      turn = kHelpers - 1;
      barrier_wait(ring.empty(), ring.parity ^ 1);
      const uint32_t dst = ring.data() + kStageWeightBytes + lane % 4 * kPiece + lane / 4 * 16;
#pragma unroll
      for (int i = 0; i < C::kGroups; ++i)
        if (i * 8 < n) {
#pragma unroll
          for (int piece = 0; piece < 4; ++piece)
            copy_16(dst + i * 128 + piece * 4 * kPiece, row[i] + walk.block * kBlockK + piece * 32,
                    i * 8 + lane / 4 < n);
        }
      copy_wait_all();
      proxy_fence();  // here, once a stage: in the consumers it costs a fifth of their time
      barrier_arrive(ring.full());
    }
  });
}

// Split walks: two warps add a unit's partial sums in segment order and store h or y.
template <class C>
__device__ __forceinline__ void finish_sums(const ExpertKernelArgs& a, const Ring<C>& ring, const uint8_t* smem,
                                            int n_tiles) {
  const int lane = threadIdx.x % 32, worker = threadIdx.x - (kConsumers + 2) * 32;  // 0 … 63
  for_each_unit(a, smem, [&](const Unit& unit) {
    const PhasePlan& p = unit.plan;
    if (p.walk != Walk::kSplit) return;
    const int buffer = unit.count & 1, pitch = p.unit_tiles * kTileRows + 4, block_tiles = min(kTiles, p.unit_tiles);
    const uint32_t bar = partial_bar(ring.bars, buffer);
    const float* sums = reinterpret_cast<const float*>(smem + kPartialOffset) + buffer * (4 * C::kTokens * 132);
    barrier_wait(bar, (unit.count >> 1) & 1);
    const auto sum = [&](int token, int row) {
      float total = 0.f;
      for (int s = 0; s < p.segments; ++s) total = __fadd_rn(total, sums[(s * C::kTokens + token) * pitch + row]);
      return total;
    };
    for (int token = 0; token < unit.tile.n; ++token) {
      const int64_t slot = unit.tile.slot0 + token;
      for (int r = worker; r < unit.tiles16 * 8; r += 64) {  // results (h) or pairs of them (y), in order of memory
        const int l = r % (8 * block_tiles), tile = r / (8 * block_tiles) * block_tiles + l % block_tiles,
                  g = l / block_tiles;
        const int global_tile = unit.index * p.unit_tiles + tile;
        const float lo = sum(token, tile * kTileRows + g), hi = sum(token, tile * kTileRows + g + 8);
        if (unit.phase == 0)
          a.h[slot * a.inter + global_tile / kTiles * 32 + 4 * g + global_tile % kTiles] = silu_mul(lo, hi);
        else
          *reinterpret_cast<uint32_t*>(a.y + slot * a.hidden + global_tile / kTiles * 64 + 8 * g +
                                       global_tile % kTiles * 2) = pack_bf16(lo, hi);
      }
    }
    barrier_arrive(bar + 8);
    if (unit.phase == 1) return;
    proxy_fence();
    __syncwarp();
    if (lane == 0) add_release(a.ready + unit.tile_index, unit.tiles16);
  });
}

// --- kernels ---

template <class C>
__global__ void __launch_bounds__(kExpertThreads, 1) experts_kernel(const __grid_constant__ ExpertKernelArgs a) {
  extern __shared__ __align__(1024) uint8_t smem[];
  const int warp = threadIdx.x / 32;
  Ring<C> ring{shared_address(smem + a.ring_offset), shared_address(smem), a.ring_stages};
  if (threadIdx.x == 0) {
    for (int s = 0; s < a.ring_stages; ++s) {
      barrier_init(ring.bars + s * 16, C::kCoreMatrices ? 33 : 2);  // full: weights; activations, by warp or by lane
      barrier_init(ring.bars + s * 16 + 8, kConsumers);
    }
    for (int b = 0; b < 2; ++b) {
      barrier_init(partial_bar(ring.bars, b), kConsumers * 32);
      barrier_init(partial_bar(ring.bars, b) + 8, 64);
    }
    for (int q = 0; q < kQueue; ++q) {
      barrier_init(queue_bar(ring.bars, q), 1);
      barrier_init(queue_bar(ring.bars, q) + 8, kConsumers + (C::kCoreMatrices ? kHelpers : C::kSplit ? 3 : 1));
    }
    barrier_init_fence();
  }
  if (threadIdx.x < kZeroBytes / 4) reinterpret_cast<uint32_t*>(smem + kBarrierBytes)[threadIdx.x] = 0;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int n_tiles = build_lists(a, smem, C::kTokens);

  if (warp < kConsumers) {
    if constexpr (C::kGroups > 1) raise_registers<232>();
    consume<C>(a, ring, smem, n_tiles);
    return;
  }
  if constexpr (C::kGroups > 1) lower_registers<40>();
  if (warp == kConsumers)
    stream_weights<C>(a, ring, smem, n_tiles);
  else if constexpr (C::kCoreMatrices)
    bring_core_matrices<C>(a, ring, smem, n_tiles);
  else if (warp == kConsumers + 1)
    bring_rows<C>(a, ring, smem, n_tiles);
  else if constexpr (C::kSplit)
    finish_sums<C>(a, ring, smem, n_tiles);
}

}  // namespace ddtree::cuda
