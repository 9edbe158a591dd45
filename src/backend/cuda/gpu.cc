#include "backend/cuda/gpu.h"

#include <cuda_runtime_api.h>

#include <string>

#include "backend/cuda/cuda_status.h"

namespace ddtree::cuda {

Result<Gpu> current_gpu() {
  int id = 0, major = 0;
  Gpu gpu;
  TRY(cuda_status(cudaGetDevice(&id), "cudaGetDevice"));
  TRY(cuda_status(cudaDeviceGetAttribute(&gpu.sms, cudaDevAttrMultiProcessorCount, id), "multiprocessor count"));
  TRY(cuda_status(cudaDeviceGetAttribute(&gpu.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id),
                  "shared memory"));
  TRY(cuda_status(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id), "compute capability"));
  gpu.wgmma = major == 9;
  if (major >= 9) return gpu;
  return Error{Code::kUnsupported, "this GPU has compute capability " + std::to_string(major) +
                                       ".x; the kernels need 9.0 or later (Hopper, Blackwell)"};
}

}  // namespace ddtree::cuda
