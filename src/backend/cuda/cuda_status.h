// CUDA errors as Status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "base/result.h"

namespace ddtree::cuda {

// `what` names the call or kernel and, for kernels, the shape.
inline Status cuda_status(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  const Code code = error == cudaErrorMemoryAllocation ? Code::kExhausted : Code::kDeviceLost;
  return Error{code, "CUDA: " + what + ": " + cudaGetErrorString(error)};
}

}  // namespace ddtree::cuda
