// Element types of tensors in files and in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ddtree {

enum class DType : uint8_t { kF32, kBF16, kF16, kF64, kF8E4M3, kF8E5M2, kI64, kI32, kI16, kI8, kU8, kBool };

// Bytes of one element.
int64_t dtype_size(DType dtype);

// What plain weights and scales may be stored as.
inline bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

// The names of the safetensors format: "F32", "BF16", "I32", …
std::string_view dtype_name(DType dtype);
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace ddtree
