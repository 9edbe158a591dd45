// Rotary embeddings: cosines and sines by position, formed once for all layers that rotate alike.
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

  // The positions of the batch's rows, which must live until the next batch.
  void stage(std::span<const int32_t> positions);
  // Before rotate(), on the staging thread.
  void prepare(int table);

  // x[0 … dim) rotated to the position of the batch's row.
  void rotate(int table, int64_t row, float* x) const;

 private:
  // Positions below this are kept; those above are formed again for every batch.
  static constexpr int32_t kKept = 32768;

  struct Table {
    Rope rope;
    bool ready = false;
    std::vector<float> kept;   // [positions so far, dim]: cosines, then sines
    std::vector<float> later;  // [rows of the batch, dim], if it has positions from kKept on
  };
  static void append(const Rope& rope, int32_t position, std::vector<float>& values);

  std::vector<Table> tables_;
  std::span<const int32_t> positions_;
};

}  // namespace ddtree::cpu
