#include "backend/ref/matrix.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cstring>

#include "base/bf16.h"
#include "base/checked.h"

namespace ddtree::ref {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kAddressSpace = int64_t{1} << 47;

float element(const TensorView& view, int64_t row, int64_t column) {
  const int64_t i = row * view.row_stride + column;
  switch (view.dtype) {
    case DType::kF32: return static_cast<const float*>(view.data)[i];
    case DType::kBF16: return bf16_to_f32(static_cast<const uint16_t*>(view.data)[i]);
    case DType::kF16: return f16_to_f32(static_cast<const uint16_t*>(view.data)[i]);
    default: CHECK(false); return 0;
  }
}

float weight(const Linear& w, int64_t row, int64_t column) {
  if (w.group_size == 0) return element(w.weight, row, column);
  const uint32_t word = static_cast<const uint32_t*>(w.weight.data)[row * w.weight.row_stride + column / 8];
  const int q = static_cast<int>((word >> (4 * (column % 8))) & 15u) - 8;
  return static_cast<float>(q) * element(w.scale, row, column / w.group_size);
}

}  // namespace

Result<Buffer> allocate_poisoned(int64_t bytes, std::string_view what) {
  CHECK_GE(bytes, 0);
  void* data = nullptr;
  if (bytes < kAddressSpace) data = std::aligned_alloc(kAlignment, round_up(std::max<int64_t>(bytes, 1), kAlignment));
  if (data == nullptr)
    return Error{Code::kExhausted, fmt::format("{}: no memory for {} bytes; ask for less", what, bytes)};
  std::memset(data, 0xff, static_cast<size_t>(bytes));
  return Buffer(data, bytes, [](void* p, int64_t) { std::free(p); });
}

Result<Matrix> load_matrix(std::span<const Linear> parts) {
  Matrix m;
  m.in = parts[0].in;
  for (const Linear& part : parts) m.out += part.out;
  const std::optional<int64_t> elements = checked_mul(m.out, m.in);
  const std::optional<int64_t> bytes = elements ? checked_mul(*elements, sizeof(float)) : std::nullopt;
  TRY_ASSIGN(m.storage, allocate_poisoned(bytes.value_or(kAddressSpace), "weights"));
  float* to = static_cast<float*>(m.storage.data());
  for (const Linear& part : parts)
    for (int64_t o = 0; o < part.out; ++o)
      for (int64_t i = 0; i < part.in; ++i) *to++ = weight(part, o, i);
  return m;
}

Result<Matrix> load_matrix(const Linear& w) {
  if (w.empty()) return Matrix{};
  return load_matrix(std::span(&w, 1));
}

std::vector<float> load_vector(const TensorView& values) {
  std::vector<float> v;
  for (int64_t i = 0; i < values.elements(); ++i) v.push_back(element(values, i, 0));
  return v;
}

}  // namespace ddtree::ref
