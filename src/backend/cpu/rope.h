// Rotary embeddings: cosines and sines of the staged rows, formed once a batch for all layers that rotate alike.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/weights.h"

namespace ddtree::cpu {

class RopeTables {
 public:
  // The table of this rotation; equal rotations share one.
  int add(const Rope& rope);

  // New positions: the tables are formed again when they are next used.
  void stage(std::span<const int32_t> positions);
  void prepare(int table);

  // x[0 … dim) rotated to the position of the batch's row.
  void rotate(int table, int64_t row, float* x) const;

 private:
  struct Table {
    Rope rope;
    bool ready = false;
    std::vector<float> cos, sin;  // [rows, dim / 2]
  };
  std::vector<Table> tables_;
  std::span<const int32_t> positions_;
};

}  // namespace ddtree::cpu
