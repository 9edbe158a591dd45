// Which kernels this processor runs.
#pragma once

#include <string_view>

#include "backend/cpu/kernels.h"
#include "base/result.h"

namespace ddtree::cpu {

// "auto": the best the processor has; "portable" or "avx512": that one, or an error.
Result<const KernelTable*> select_kernels(std::string_view isa);

}  // namespace ddtree::cpu
