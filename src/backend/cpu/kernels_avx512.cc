// Compiled for AVX-512. Nothing here may be used by, or shared inline with, code that runs before the CPU is known: the
// kernels are templates over Avx512Vec, which only this file instantiates.
#include "backend/cpu/kernels_table.h"
#include "backend/cpu/vec_avx512.h"

namespace ddtree::cpu {

constinit const KernelTable kAvx512Kernels = make_kernels<Avx512Vec>("AVX-512");

}  // namespace ddtree::cpu
