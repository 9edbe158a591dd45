// Tensors of a golden safetensors file by name, as vectors. A missing name or another dtype ends the test program.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace ddtree {

class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path);  // below the source tree

  std::vector<int32_t> ids(const std::string& name) const;  // I32 or I16
  std::vector<float> floats(const std::string& name) const;
  const TensorEntry& entry(const std::string& name) const;

 private:
  SafetensorsFile file_;
};

}  // namespace ddtree
