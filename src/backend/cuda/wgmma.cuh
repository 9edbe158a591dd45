// wgmma m64nNk16, the tensor instruction of sm_90a. On other targets the functions trap: only
// kernels that the host starts on sm_90 call them.
#pragma once

#include <cstdint>

namespace ddtree::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

inline constexpr bool kHasWgmma = true;

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

#define DDTREE_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DDTREE_WGMMA(n, d_regs, a_regs, b_reg, keep, ...)                                         \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, " keep ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
               "k16.f32.bf16.bf16 {" d_regs "}, {" a_regs "}, " b_reg ", p, 1, 1, 0; }"           \
               : __VA_ARGS__                                                                      \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d [64, 8·T] = a [64, 16] · b [16, 8·T], plus d where Keep; b in shared memory behind a descriptor.
template <int T, bool Keep>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[4 * T], const uint32_t* a, uint64_t b) {
  static_assert(T == 3 || T == 4);
  if constexpr (T == 3 && Keep) {
    DDTREE_WGMMA(24, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11", "%12,%13,%14,%15", "%16", "1", DDTREE_D4(0), DDTREE_D4(4),
                 DDTREE_D4(8));
  } else if constexpr (T == 3) {
    DDTREE_WGMMA(24, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11", "%12,%13,%14,%15", "%16", "0", DDTREE_D4(0), DDTREE_D4(4),
                 DDTREE_D4(8));
  } else if constexpr (Keep) {
    DDTREE_WGMMA(32, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", "%16,%17,%18,%19", "%20", "1",
                 DDTREE_D4(0), DDTREE_D4(4), DDTREE_D4(8), DDTREE_D4(12));
  } else {
    DDTREE_WGMMA(32, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", "%16,%17,%18,%19", "%20", "0",
                 DDTREE_D4(0), DDTREE_D4(4), DDTREE_D4(8), DDTREE_D4(12));
  }
}
#undef DDTREE_WGMMA
#undef DDTREE_D4

#define DDTREE_ROW(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])

// d [64, 64] = a [64, 16] · b [16, 64], plus d where keep; both in shared memory, K-major.
__device__ __forceinline__ void wgmma_m64n64k16(float (&d)[8][4], uint64_t a, uint64_t b, bool keep) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
      "}, %32, %33, p, 1, 1, 0, 0; }"
      : DDTREE_ROW(0), DDTREE_ROW(1), DDTREE_ROW(2), DDTREE_ROW(3), DDTREE_ROW(4), DDTREE_ROW(5), DDTREE_ROW(6),
        DDTREE_ROW(7)
      : "l"(a), "l"(b), "r"(static_cast<int>(keep)));
}

// d [64, 8·J] += a [64, 16] · b [16, 8·J]; a in registers, b in shared memory, K-major.
template <int J>
__device__ __forceinline__ void wgmma_add(float (&d)[J][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(J == 4 || J == 8);
  if constexpr (J == 4) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "{%16,%17,%18,%19}, %20, 1, 1, 1, 0;"
        : DDTREE_ROW(0), DDTREE_ROW(1), DDTREE_ROW(2), DDTREE_ROW(3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"
        : DDTREE_ROW(0), DDTREE_ROW(1), DDTREE_ROW(2), DDTREE_ROW(3), DDTREE_ROW(4), DDTREE_ROW(5), DDTREE_ROW(6),
          DDTREE_ROW(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}

// d [64, 256] += a [64, 16] · b [16, 256]; a in registers, b in shared memory, N-major.
__device__ __forceinline__ void wgmma_m64n256k16(float (&d)[32][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
      "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
      "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
      "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
      "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
      "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"
      : DDTREE_ROW(0), DDTREE_ROW(1), DDTREE_ROW(2), DDTREE_ROW(3), DDTREE_ROW(4), DDTREE_ROW(5), DDTREE_ROW(6),
        DDTREE_ROW(7), DDTREE_ROW(8), DDTREE_ROW(9), DDTREE_ROW(10), DDTREE_ROW(11), DDTREE_ROW(12), DDTREE_ROW(13),
        DDTREE_ROW(14), DDTREE_ROW(15), DDTREE_ROW(16), DDTREE_ROW(17), DDTREE_ROW(18), DDTREE_ROW(19), DDTREE_ROW(20),
        DDTREE_ROW(21), DDTREE_ROW(22), DDTREE_ROW(23), DDTREE_ROW(24), DDTREE_ROW(25), DDTREE_ROW(26), DDTREE_ROW(27),
        DDTREE_ROW(28), DDTREE_ROW(29), DDTREE_ROW(30), DDTREE_ROW(31)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef DDTREE_ROW

#else

inline constexpr bool kHasWgmma = false;

__device__ inline void wgmma_fence() {}
__device__ inline void wgmma_commit() {}
template <int Pending>
__device__ inline void wgmma_wait() {}
template <int T, bool Keep>
__device__ __forceinline__ void wgmma_m64k16(float (&)[4 * T], const uint32_t*, uint64_t) {
  __trap();
}
__device__ __forceinline__ void wgmma_m64n64k16(float (&)[8][4], uint64_t, uint64_t, bool) { __trap(); }
template <int J>
__device__ __forceinline__ void wgmma_add(float (&)[J][4], const uint32_t (&)[4], uint64_t) {
  __trap();
}
__device__ __forceinline__ void wgmma_m64n256k16(float (&)[32][4], const uint32_t (&)[4], uint64_t) { __trap(); }

#endif

// Keeps the compiler from reading d before the wait above it.
template <int J>
__device__ inline void wgmma_settle(float (&d)[J][4]) {
#pragma unroll
  for (int j = 0; j < J; ++j) asm volatile("" : "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])::"memory");
}
template <int R>
__device__ inline void wgmma_settle(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptor of a K-major operand without swizzle: core matrices (8 columns × 16 bytes) `k_stride` bytes apart along K
// and `n_stride` along the columns.
__device__ inline uint64_t wgmma_descriptor(uint32_t address, int k_stride, int n_stride) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(k_stride >> 4) << 16 |
         static_cast<uint64_t>(n_stride >> 4) << 32;
}

// Descriptor of an operand under the copy engine's 128-byte swizzle: 128-byte rows, `rows_8` bytes from 8 of them to
// the next 8, and, for an N-major operand, `columns_64` bytes from 64 columns to the next 64. Tiles start at multiples
// of 1024 bytes.
__device__ inline uint64_t wgmma_swizzled_descriptor(uint32_t address, int rows_8, int columns_64) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(columns_64 >> 4) << 16 |
         static_cast<uint64_t>(rows_8 >> 4) << 32 | uint64_t{1} << 62;
}

}  // namespace ddtree::cuda
