// Any bytes as a .safetensors file: refused, or every entry lies within the file and has the bytes its shape needs.
#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ddtree::Result<std::vector<ddtree::TensorEntry>> entries =
      ddtree::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
  if (!entries.ok()) return 0;
  int64_t covered = 0;
  for (const ddtree::TensorEntry& entry : *entries) {
    CHECK(entry.begin >= 8 && entry.bytes >= 0);
    CHECK_LE(entry.begin + entry.bytes, static_cast<int64_t>(size));
    covered += entry.bytes;
  }
  CHECK_LE(covered, static_cast<int64_t>(size) - 8);
  return 0;
}
