// Packs Linears from a checkpoint for the kernels. Sources are checked before (backend/source_check.h).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "backend/cpu/host_memory.h"
#include "backend/cpu/kernels.h"
#include "base/result.h"
#include "tensor/linear.h"

namespace ddtree::cpu {

// A packed matrix and its memory.
struct Matrix : PackedMatrix {
  WeightArena::Block memory;
};

std::vector<float> to_f32(const TensorView& vector);

// The parts stacked along `out`. Formats keep every bit: BF16 and INT4 stay as they are, F16 and parts of different
// formats are widened to F32. `name` is for the message.
Result<Matrix> pack(std::span<const Linear> parts, WeightArena& arena, std::string_view name);
// gate and up in one matrix: a block holds two panels of gate and then the same two of up (one and one at the end).
Result<Matrix> pack_gate_up(const Linear& gate, const Linear& up, WeightArena& arena, std::string_view name);
// Rows [first, first + rows) of a Linear, transposed: out = its `in`, in = rows.
Result<Matrix> pack_transposed(const Linear& linear, int64_t first, int64_t rows, WeightArena& arena,
                               std::string_view name);

// Row `output` of a packed matrix, as floats [in].
void unpack_row(const PackedMatrix& matrix, int64_t output, float* values);

}  // namespace ddtree::cpu
