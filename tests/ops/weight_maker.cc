#include "weight_maker.h"

#include <cmath>
#include <cstring>

#include "base/bf16.h"

namespace ddtree::ops {
namespace {

// Rounds to half by searching no table: scales exactly, since the values made here are normal in half precision.
uint16_t f32_to_f16(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  if (magnitude < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(magnitude * 0x1p24f)));
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);  // [0.5, 1)
  const auto mantissa =
      static_cast<int>(std::nearbyint(fraction * 2048));  // 1024 … 2048; 2048 carries into the exponent
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + mantissa - 1024));
}

template <class T>
void append(std::vector<std::byte>& bytes, T value) {
  const size_t at = bytes.size();
  bytes.resize(at + sizeof value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

double stored_value(const TensorView& v, int64_t at) {
  switch (v.dtype) {
    case DType::kF32: return v.as<float>()[at];
    case DType::kBF16: return bf16_to_f32(v.as<uint16_t>()[at]);
    default: CHECK(v.dtype == DType::kF16); return f16_to_f32(v.as<uint16_t>()[at]);
  }
}

}  // namespace

TensorView WeightMaker::store(std::vector<float> values, DType dtype, std::initializer_list<int64_t> dims) {
  std::vector<std::byte>& bytes = owned_.emplace_back();
  for (float v : values) {
    if (dtype == DType::kF32) append(bytes, v);
    if (dtype == DType::kBF16) append(bytes, f32_to_bf16(v));
    if (dtype == DType::kF16) append(bytes, f32_to_f16(v));
  }
  return TensorView(bytes.data(), dtype, dims);
}

Linear WeightMaker::plain(int64_t out, int64_t in, const std::vector<float>& values) {
  CHECK_EQ(static_cast<int64_t>(values.size()), out * in);
  return {store(values, DType::kF32, {out, in}), {}, 0, out, in};
}

Linear WeightMaker::packed(int64_t out, int64_t in, std::vector<uint32_t> words, const std::vector<float>& scales,
                           Storage storage) {
  CHECK_EQ(static_cast<int64_t>(words.size()), out * in / 8);
  std::vector<std::byte>& bytes = owned_.emplace_back();
  for (uint32_t word : words) append(bytes, word);
  return {TensorView(bytes.data(), DType::kI32, {out, in / 8}), store(scales, storage.dtype, {out, in / storage.group}),
          storage.group, out, in};
}

Linear WeightMaker::linear(int64_t out, int64_t in, Storage storage) {
  const float deviation = 1 / std::sqrt(static_cast<float>(in));
  if (storage.group == 0)
    return {store(random_.normals(out * in, deviation), storage.dtype, {out, in}), {}, 0, out, in};
  std::vector<uint32_t> words(out * in / 8);
  for (uint32_t& w : words) w = static_cast<uint32_t>(random_.bits());
  std::vector<float> scales(out * in / storage.group);
  for (float& s : scales) s = deviation / 4.6f * static_cast<float>(0.5 + random_.uniform());  // 4.6: of −8 … 7
  return packed(out, in, std::move(words), scales, storage);
}

TensorView WeightMaker::gain(int64_t n, DType dtype) {
  std::vector<float> values = random_.normals(n, 0.25f);
  for (float& v : values) v += 1;
  return vector(values, dtype);
}

TensorView WeightMaker::vector(const std::vector<float>& values, DType dtype) {
  return store(values, dtype, {static_cast<int64_t>(values.size())});
}

MlpSource WeightMaker::mlp(int64_t hidden, int64_t inter, Storage storage) {
  return {linear(inter, hidden, storage), linear(inter, hidden, storage), linear(hidden, inter, storage)};
}

double weight_value(const Linear& w, int64_t o, int64_t i) {
  if (w.group_size == 0) return stored_value(w.weight, o * w.in + i);
  const auto word = static_cast<uint32_t>(w.weight.as<int32_t>()[(o * w.in + i) / 8]);
  const uint32_t nibble = (word >> (4 * (i % 8))) & 15u;
  return (static_cast<double>(nibble) - 8) * stored_value(w.scale, (o * w.in + i) / w.group_size);
}

double vector_value(const TensorView& v, int64_t i) { return stored_value(v, i); }

Rope make_rope(int32_t dim, bool interleaved, double base, float amplitude) {
  Rope rope{dim, interleaved, amplitude, {}};
  for (int32_t i = 0; i < dim / 2; ++i) rope.inv_freq.push_back(std::pow(base, -2.0 * i / dim));
  return rope;
}

}  // namespace ddtree::ops
