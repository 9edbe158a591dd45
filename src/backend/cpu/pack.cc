#include "backend/cpu/pack.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "base/bf16.h"
#include "base/checked.h"

namespace ddtree::cpu {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPadding = -1;

// Files promise no alignment for their tensors.
template <class T>
T read(const void* base, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(base) + index * static_cast<int64_t>(sizeof(T)), sizeof value);
  return value;
}

float read_float(const TensorView& view, int64_t row, int64_t column) {
  const int64_t index = row * view.row_stride + column;
  switch (view.dtype) {
    case DType::kF32: return read<float>(view.data, index);
    case DType::kBF16: return bf16_to_f32(read<uint16_t>(view.data, index));
    default: return f16_to_f32(read<uint16_t>(view.data, index));
  }
}

uint32_t read_word(const Linear& linear, int64_t row, int64_t word) {
  return read<uint32_t>(linear.weight.data, row * linear.weight.row_stride + word);
}

float read_weight(const Linear& linear, int64_t row, int64_t k) {
  if (linear.group_size == 0) return read_float(linear.weight, row, k);
  const int q = static_cast<int>(read_word(linear, row, k / 8) >> (4 * (k % 8)) & 15) - 8;
  return static_cast<float>(q) * read_float(linear.scale, row, k / linear.group_size);
}

Format format_of(const Linear& linear) {
  if (linear.group_size == 0) return linear.weight.dtype == DType::kBF16 ? Format::kBf16 : Format::kF32;
  return linear.scale.dtype == DType::kBF16 ? Format::kInt4Bf16 : Format::kInt4F32;
}

int64_t scale_bytes(Format format) { return format == Format::kInt4Bf16 ? kLine / 2 : kLine; }

int64_t panel_bytes(Format format, int64_t in, int64_t group) {
  switch (format) {
    case Format::kF32: return in * kLine;
    case Format::kBf16: return ceil_div(in, 2) * kLine;
    default: return in / 8 * kLine + in / group * scale_bytes(format);
  }
}

// The parts as one matrix of rows, in any order.
class Source {
 public:
  // rows: of the parts stacked along `out`; kPadding is a row of zeros.
  Source(std::span<const Linear> parts, const std::vector<int64_t>& rows) {
    std::vector<Row> stacked;
    for (const Linear& part : parts)
      for (int64_t r = 0; r < part.out; ++r) stacked.push_back({&part, r});
    for (int64_t row : rows) rows_.push_back(row == kPadding ? Row() : stacked[static_cast<size_t>(row)]);
  }

  struct Row {
    const Linear* linear = nullptr;  // null: zeros
    int64_t row = 0;

    const uint8_t* data() const {
      const TensorView& w = linear->weight;
      return static_cast<const uint8_t*>(w.data) + row * w.row_stride * dtype_size(w.dtype);
    }
  };
  Row row(int64_t output) const { return output < outputs() ? rows_[static_cast<size_t>(output)] : Row(); }
  int64_t outputs() const { return static_cast<int64_t>(rows_.size()); }

 private:
  std::vector<Row> rows_;
};

// Packs the panels of one matrix. In every format a line of a panel is one 32-bit word of each of sixteen rows.
class Packer {
 public:
  Packer(const Source& source, const PackedMatrix& matrix, uint8_t* data) : source_(source), m_(matrix), data_(data) {}

  void panel(int64_t p) {
    const int64_t block = p / kBlockPanels * kBlockPanels;
    width_ = std::min<int64_t>(kBlockPanels, m_.panels() - block);
    index_ = p - block;
    uint8_t* base = data_ + block * m_.panel_bytes;
    for (int lane = 0; lane < kLanes; ++lane) row_[lane] = source_.row(p * kLanes + lane);
    if (m_.format == Format::kF32) return f32(base);
    std::fill_n(words_, kLanes, nullptr);
    for (int lane = 0; lane < kLanes; ++lane)
      if (row_[lane].linear != nullptr) words_[lane] = row_[lane].data();
    m_.format == Format::kBf16 ? bf16(base) : int4(base);
  }

 private:
  // Lines of `count` words from `first` on.
  void lines(uint8_t* base, int64_t first, int64_t count) const {
    uint8_t* line = base + index_ * kLine;
    for (int64_t w = first; w < first + count; ++w, line += width_ * kLine)
      for (int lane = 0; lane < kLanes; ++lane)
        if (words_[lane] != nullptr)
          std::memcpy(line + 4 * lane, words_[lane] + 4 * w, 4);
        else
          std::memset(line + 4 * lane, 0, 4);
  }
  void f32(uint8_t* base) {
    wide_.assign(static_cast<size_t>(kLanes * m_.in), 0.0f);
    for (int lane = 0; lane < kLanes; ++lane) {
      float* values = wide_.data() + lane * m_.in;
      words_[lane] = reinterpret_cast<const uint8_t*>(values);
      const Source::Row& r = row_[lane];
      for (int64_t k = 0; r.linear != nullptr && k < m_.in; ++k) values[k] = read_weight(*r.linear, r.row, k);
    }
    lines(base, 0, m_.in);
  }
  void bf16(uint8_t* base) const {
    lines(base, 0, m_.in / 2);
    if (m_.in % 2 == 0) return;
    uint8_t* line = base + m_.in / 2 * width_ * kLine + index_ * kLine;
    std::memset(line, 0, kLine);
    for (int lane = 0; lane < kLanes; ++lane)
      if (words_[lane] != nullptr) std::memcpy(line + 4 * lane, words_[lane] + 2 * (m_.in - 1), 2);
  }
  void int4(uint8_t* base) const {
    const int64_t words = m_.group / 8, scale = scale_bytes(m_.format);
    for (int64_t g = 0; g < m_.in / m_.group; ++g) {
      lines(base, g * words, words);
      base += words * width_ * kLine;
      for (int lane = 0; lane < kLanes; ++lane) {
        const Source::Row& r = row_[lane];
        const float s = r.linear != nullptr ? read_float(r.linear->scale, r.row, g) : 0.0f;
        const uint16_t half = f32_to_bf16(s);  // exact: this format is for BF16 scales
        if (m_.format == Format::kInt4Bf16)
          std::memcpy(base + index_ * scale + 2 * lane, &half, 2);
        else
          std::memcpy(base + index_ * scale + 4 * lane, &s, 4);
      }
      base += width_ * scale;
    }
  }

  const Source& source_;
  const PackedMatrix& m_;
  uint8_t* data_;
  int64_t width_ = 0, index_ = 0;  // of the panel's block, and its place there
  Source::Row row_[kLanes];
  const uint8_t* words_[kLanes] = {};  // of each row; null: zeros
  std::vector<float> wide_;            // rows widened to F32
};

Result<Matrix> pack_source(const Source& source, Format format, int64_t in, int32_t group, WeightArena& arena,
                           std::string_view name) {
  if (group % 8 != 0)
    return Error{Code::kUnsupported,
                 fmt::format("{}: group size {} is not a multiple of 8; the cpu backend cannot run it", name, group)};
  Matrix m;
  m.format = format;
  m.group = group;
  m.out = source.outputs();
  m.in = in;
  m.panel_bytes = panel_bytes(format, in, group);
  m.memory = arena.allocate(m.bytes());
  if (m.memory.data() == nullptr)
    return Error{Code::kExhausted, fmt::format("out of memory: {} bytes for the weights of {}", m.bytes(), name)};
  m.data = m.memory.data();
  Packer packer(source, m, m.memory.data());
  for (int64_t p = 0; p < m.panels(); ++p) packer.panel(p);
  return m;
}

// The parts' common format and group; F32 where they differ.
std::pair<Format, int32_t> common_format(std::span<const Linear> parts) {
  const Format format = format_of(parts[0]);
  for (const Linear& part : parts)
    if (format_of(part) != format || part.group_size != parts[0].group_size) return {Format::kF32, 0};
  return {format, parts[0].group_size};
}

}  // namespace

std::vector<float> to_f32(const TensorView& vector) {
  std::vector<float> values(static_cast<size_t>(vector.elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = read_float(vector, static_cast<int64_t>(i), 0);
  return values;
}

Result<Matrix> pack(std::span<const Linear> parts, WeightArena& arena, std::string_view name) {
  const auto [format, group] = common_format(parts);
  int64_t out = 0;
  for (const Linear& part : parts) out += part.out;
  std::vector<int64_t> rows(static_cast<size_t>(out));
  std::iota(rows.begin(), rows.end(), 0);
  return pack_source(Source(parts, rows), format, parts[0].in, group, arena, name);
}

Result<Matrix> pack_gate_up(const Linear& gate, const Linear& up, WeightArena& arena, std::string_view name) {
  const Linear parts[] = {gate, up};
  const auto [format, group] = common_format(parts);
  const int64_t panels = ceil_div(gate.out, kLanes);
  std::vector<int64_t> rows;
  const auto append_panel = [&](int64_t base, int64_t panel) {
    for (int64_t o = panel * kLanes; o < (panel + 1) * kLanes; ++o) rows.push_back(o < gate.out ? base + o : kPadding);
  };
  for (int64_t p = 0; p < panels; p += kBlockPanels / 2) {
    const int64_t end = std::min<int64_t>(p + kBlockPanels / 2, panels);
    for (int64_t base : {int64_t{0}, gate.out})
      for (int64_t i = p; i < end; ++i) append_panel(base, i);
  }
  return pack_source(Source(parts, rows), format, gate.in, group, arena, name);
}

Result<Matrix> pack_transposed(const Linear& linear, int64_t first, int64_t rows, WeightArena& arena,
                               std::string_view name) {
  const bool bf16 = format_of(linear) == Format::kBf16;
  std::vector<uint8_t> values(static_cast<size_t>(rows * linear.in * (bf16 ? 2 : 4)));
  const Linear transposed = {
      TensorView(values.data(), bf16 ? DType::kBF16 : DType::kF32, {linear.in, rows}), {}, 0, linear.in, rows};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < linear.in; ++k) {
      if (bf16)
        transposed.weight.row<uint16_t>(k)[r] =
            read<uint16_t>(linear.weight.data, (first + r) * linear.weight.row_stride + k);
      else
        transposed.weight.row<float>(k)[r] = read_weight(linear, first + r, k);
    }
  return pack({&transposed, 1}, arena, name);
}

void unpack_row(const PackedMatrix& m, int64_t output, float* values) {
  const int64_t panel = output / kLanes, block = panel / kBlockPanels * kBlockPanels;
  const int64_t width = std::min<int64_t>(kBlockPanels, m.panels() - block);
  const int64_t step = width * kLine, lane = output % kLanes, index = panel - block;
  const uint8_t* base = m.data + block * m.panel_bytes;
  if (m.format == Format::kF32) {
    for (int64_t k = 0; k < m.in; ++k) values[k] = read<float>(base + k * step + index * kLine, lane);
    return;
  }
  if (m.format == Format::kBf16) {
    for (int64_t k = 0; k < m.in; ++k)
      values[k] = bf16_to_f32(read<uint16_t>(base + k / 2 * step + index * kLine, 2 * lane + k % 2));
    return;
  }
  const int64_t scales = scale_bytes(m.format), group_bytes = m.group / 8 * step + width * scales;
  for (int64_t k = 0; k < m.in; ++k) {
    const uint8_t* group = base + k / m.group * group_bytes;
    const int64_t word = k % m.group / 8;
    const uint32_t bits = read<uint32_t>(group + word * step + index * kLine, lane);
    const uint8_t* scale = group + m.group / 8 * step + index * scales;
    const float s = m.format == Format::kInt4Bf16 ? bf16_to_f32(read<uint16_t>(scale, lane)) : read<float>(scale, lane);
    values[k] = static_cast<float>(static_cast<int>(bits >> (4 * (k % 8)) & 15) - 8) * s;
  }
}

}  // namespace ddtree::cpu
