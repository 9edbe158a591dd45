// wgmma m64nNk16 with A in registers, the tensor instruction of sm_90a. On other targets the functions trap: only
// kernels that the host starts on sm_90 call them.
#pragma once

#include <cstdint>

namespace ddtree::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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

#else

__device__ inline void wgmma_fence() {}
__device__ inline void wgmma_commit() {}
template <int Pending>
__device__ inline void wgmma_wait() {}
template <int T, bool Keep>
__device__ __forceinline__ void wgmma_m64k16(float (&)[4 * T], const uint32_t*, uint64_t) {
  __trap();
}

#endif

// Keeps the compiler from reading d before the wait above it.
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

}  // namespace ddtree::cuda
