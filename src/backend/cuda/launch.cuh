// Launches kernels so that one may start while the one before it ends. Such a kernel calls wait_for_previous_kernel()
// before it touches what earlier kernels read or write.
#pragma once

#include <cuda_runtime.h>

namespace ddtree::cuda {

template <class Kernel, class... Args>
cudaError_t launch_after(Kernel kernel, dim3 grid, int threads, int shared_bytes, cudaStream_t stream,
                         const Args&... args) {
  cudaLaunchAttribute chained{};
  chained.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  chained.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &chained;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace ddtree::cuda
