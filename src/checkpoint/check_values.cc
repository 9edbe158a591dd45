#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/core.h>

#include "checkpoint/weights_source.h"

namespace ddtree {
namespace {

template <class T>
T read(const TensorView& view, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(view.data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

int64_t read_integer(const TensorView& view, int64_t index) {
  return view.dtype == DType::kI64 ? read<int64_t>(view, index) : read<int32_t>(view, index);
}

// Index of the first value that is NaN or infinite, -1 if none: its exponent bits are all ones. `Bits` holds one value.
template <class Bits>
int64_t find_non_finite(const TensorView& view, Bits exponent) {
  constexpr int64_t kBlock = 256;  // values between two looks, so that the loop within can be vectorised
  const int64_t n = view.elements();
  const auto is_bad = [&](int64_t i) { return (read<Bits>(view, i) & exponent) == exponent; };
  for (int64_t first = 0; first < n; first += kBlock) {
    const int64_t last = std::min(n, first + kBlock);
    bool any = false;
    for (int64_t i = first; i < last; ++i) any |= is_bad(i);
    for (int64_t i = first; any && i < last; ++i)
      if (is_bad(i)) return i;
  }
  return -1;
}

int64_t find_non_finite(const TensorView& view) {
  switch (view.dtype) {
    case DType::kBF16: return find_non_finite<uint16_t>(view, 0x7f80);
    case DType::kF16: return find_non_finite<uint16_t>(view, 0x7c00);
    case DType::kF32: return find_non_finite<uint32_t>(view, 0x7f800000);
    default: return -1;
  }
}

bool must_be_finite(std::string_view name) {
  return name.ends_with(".weight_scale") || name.ends_with(".e_score_correction_bias") || name.ends_with("norm.weight");
}

// weight_shape [out, in] beside weight_packed [out, in / 8].
Status check_weight_shape(const Checkpoint& checkpoint, const Checkpoint::Tensor& tensor) {
  std::string packed_name = tensor.entry->name;
  packed_name.replace(packed_name.size() - 5, 5, "packed");
  const std::optional<size_t> index = checkpoint.find(packed_name);
  const bool is_shape = tensor.entry->rank == 1 && tensor.entry->dim[0] == 2 &&
                        (tensor.entry->dtype == DType::kI32 || tensor.entry->dtype == DType::kI64);
  if (!index || !is_shape) return {};  // not part of an INT4 triple
  const TensorEntry& packed = *checkpoint.tensors()[*index].entry;
  const TensorView shape = checkpoint.view(tensor);
  const int64_t out = read_integer(shape, 0);
  const int64_t in = read_integer(shape, 1);
  if (packed.rank == 2 && out == packed.dim[0] && in >= 0 && in / 8 == packed.dim[1] && in % 8 == 0) return {};
  return Error{Code::kCorrupt, fmt::format("{}: tensor {} holds [{}, {}], but weight_packed is {}",
                                           checkpoint.file(tensor), tensor.entry->name, out, in, describe(packed))};
}

}  // namespace

Status check_values(const Checkpoint& checkpoint) {
  for (const Checkpoint::Tensor& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.entry->name;
    if (name.ends_with(".weight_shape")) TRY(check_weight_shape(checkpoint, tensor));
    if (!must_be_finite(name) || tensor.entry->rank > TensorView::kMaxRank) continue;
    const int64_t bad = find_non_finite(checkpoint.view(tensor));
    if (bad >= 0)
      return Error{Code::kCorrupt, fmt::format("{}: tensor {} holds NaN or infinity at element {}",
                                               checkpoint.file(tensor), name, bad)};
  }
  return {};
}

}  // namespace ddtree
