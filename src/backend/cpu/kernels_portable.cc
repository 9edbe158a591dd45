#include "backend/cpu/kernels_table.h"
#include "backend/cpu/vec_portable.h"

namespace ddtree::cpu {

constinit const KernelTable kPortableKernels = make_kernels<PortableVec>("portable");

}  // namespace ddtree::cpu
