// What the launches need to know of a GPU.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace ddtree::cuda {

struct Gpu {
  int32_t sms = 0;
  int32_t shared_bytes = 0;  // that a CTA may use
  bool wgmma = false;        // sm_90
};

// The current device; refused where the kernels don't run.
Result<Gpu> current_gpu();

}  // namespace ddtree::cuda
