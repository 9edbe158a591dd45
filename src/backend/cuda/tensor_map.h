// Matrices as the copy engine sees them.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string>

#include "base/result.h"

namespace ddtree::cuda {

// A bf16 matrix [rows, width] with `pitch` elements between rows (16-byte aligned, a multiple of 8), in boxes of
// `box_rows` rows × 64 columns under the 128-byte swizzle; what lies outside the matrix arrives as zeros.
Result<CUtensorMap> bf16_tensor_map(const void* data, int64_t rows, int64_t width, int64_t pitch, int32_t box_rows,
                                    const std::string& what);

}  // namespace ddtree::cuda
