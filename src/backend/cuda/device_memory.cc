#include "backend/cuda/device_memory.h"

#include <cuda_runtime_api.h>

#include <string>

#include "backend/cuda/cuda_status.h"

namespace ddtree::cuda {

Result<Buffer> allocate_device(int64_t bytes, std::string_view what) {
  void* data = nullptr;
  TRY(cuda_status(cudaMalloc(&data, static_cast<size_t>(bytes)),
                  "allocating " + std::to_string(bytes) + " bytes of device memory for " + std::string(what)));
  return Buffer(data, bytes, [](void* p, int64_t) { cudaFree(p); });
}

}  // namespace ddtree::cuda
