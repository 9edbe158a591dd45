#include "backend/cuda/tensor_map.h"

#include "backend/cuda/cuda_status.h"

namespace ddtree::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time: programs need no driver to start.
Result<EncodeTiled> encode_tiled() {
  static EncodeTiled found = nullptr;
  if (found != nullptr) return found;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  TRY(cuda_status(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result),
                  "cuTensorMapEncodeTiled"));
  if (entry == nullptr || result != cudaDriverEntryPointSuccess)
    return Error{Code::kUnsupported, "the GPU's driver has no cuTensorMapEncodeTiled; it needs to support CUDA 12.0"};
  found = reinterpret_cast<EncodeTiled>(entry);
  return found;
}

}  // namespace

Result<CUtensorMap> bf16_tensor_map(const void* data, int64_t rows, int64_t width, int64_t pitch, int32_t box_rows,
                                    const std::string& what) {
  TRY_ASSIGN(const EncodeTiled encode, encode_tiled());
  CUtensorMap map;
  const cuuint64_t size[2] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(rows)};
  const cuuint64_t bytes[1] = {static_cast<cuuint64_t>(pitch) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, step[2] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), size, bytes, box,
                                 step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return Error{Code::kInvalidArgument,
               what + ": [" + std::to_string(rows) + ", " + std::to_string(width) + "] with " + std::to_string(pitch) +
                   " values a row: cuTensorMapEncodeTiled failed with " + std::to_string(result)};
}

}  // namespace ddtree::cuda
