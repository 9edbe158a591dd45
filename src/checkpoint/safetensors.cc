#include "checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/json.h"

namespace ddtree {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and used in place");

constexpr int64_t kLengthBytes = 8;

Error corrupt(std::string_view file, const std::string& what) {
  return Error{Code::kCorrupt, fmt::format("{}: {}", file, what)};
}

// The header's text, once its length is known to be possible.
Result<std::string_view> find_header(std::string_view file, std::string_view name) {
  const int64_t size = static_cast<int64_t>(file.size());
  if (is_lfs_pointer(file))
    return corrupt(name, "is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`");
  if (size < kLengthBytes)
    return corrupt(name, fmt::format("has {} bytes, a safetensors file has at least 8 and a header", size));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader))
    return corrupt(
        name, fmt::format("declares a header of {} bytes, at most {} are accepted", length, kMaxSafetensorsHeader));
  if (static_cast<int64_t>(length) > size - kLengthBytes)
    return corrupt(name, fmt::format("declares a header of {} bytes, but only {} follow; the file is truncated", length,
                                     size - kLengthBytes));
  const std::string_view header = file.substr(kLengthBytes, length);
  if (header.empty() || header[0] != '{') return corrupt(name, "header does not begin with '{'");
  return header;
}

Status parse_shape(const JsonValue& tensor, TensorEntry* entry) {
  TRY_ASSIGN(const JsonValue shape, tensor.get("shape"));
  TRY_ASSIGN(const JsonElements dims, shape.elements());
  if (dims.size() > TensorEntry::kMaxRank)
    return shape.error(Code::kUnsupported, fmt::format("has {} dimensions, at most {} are supported", dims.size(),
                                                       int{TensorEntry::kMaxRank}));
  for (const JsonValue dim : dims) {
    TRY_ASSIGN(entry->dim[entry->rank], dim.as_int(0));
    ++entry->rank;
  }
  return {};
}

// dtype size · product of the shape, unless that leaves 63 bits.
std::optional<int64_t> byte_count(const TensorEntry& entry) {
  std::optional<int64_t> bytes = dtype_size(entry.dtype);
  for (int i = 0; i < entry.rank && bytes; ++i) bytes = checked_mul(*bytes, entry.dim[i]);
  return bytes;
}

// `data_begin`: where the data section starts in the file.
Result<TensorEntry> parse_entry(std::string_view name, const JsonValue& tensor, int64_t data_begin) {
  TensorEntry entry;
  entry.name = name;
  TRY_ASSIGN(const std::string_view dtype, tensor.get_string("dtype"));
  const std::optional<DType> known = dtype_from_name(dtype);
  if (!known) return tensor.error(Code::kUnsupported, fmt::format("dtype \"{}\" is not supported", dtype));
  entry.dtype = *known;
  TRY(parse_shape(tensor, &entry));
  TRY_ASSIGN(const JsonValue offsets, tensor.get("data_offsets"));
  TRY_ASSIGN(const JsonElements ends, offsets.elements());
  if (ends.size() != 2) return offsets.error(Code::kCorrupt, "must be two numbers");
  JsonElements::Iterator it = ends.begin();
  TRY_ASSIGN(const int64_t begin, (*it).as_int(0));
  ++it;
  TRY_ASSIGN(const int64_t end, (*it).as_int(begin));
  const std::optional<int64_t> bytes = byte_count(entry);
  if (!bytes || *bytes != end - begin)
    return tensor.error(Code::kCorrupt,
                        fmt::format("data_offsets hold {} bytes, {} needs {}", end - begin, describe(entry),
                                    bytes ? std::to_string(*bytes) : "more than 2^63"));
  const std::optional<int64_t> file_begin = checked_add(begin, data_begin);
  if (!file_begin || !checked_add(end, data_begin)) return offsets.error(Code::kCorrupt, "is beyond any file");
  entry.begin = *file_begin;
  entry.bytes = *bytes;
  return entry;
}

Status check_metadata(const JsonValue& metadata) {
  TRY_ASSIGN(const JsonMembers members, metadata.members());
  for (const auto [key, value] : members) TRY(value.as_string());
  return {};
}

Result<std::vector<TensorEntry>> parse_header(std::string_view header, int64_t data_begin, std::string_view name) {
  TRY_ASSIGN(const JsonDocument document,
             parse_json(header, name, {.max_bytes = static_cast<size_t>(kMaxSafetensorsHeader), .max_depth = 8}));
  TRY_ASSIGN(const JsonMembers members, document.root().members());
  std::vector<TensorEntry> entries;
  entries.reserve(members.size());
  for (const auto [key, value] : members) {
    if (key == "__metadata__") {
      TRY(check_metadata(value));
      continue;
    }
    TRY_ASSIGN(TensorEntry entry, parse_entry(key, value, data_begin));
    entries.push_back(std::move(entry));
  }
  return entries;
}

// The data section [data_begin, file_size) must be covered once and entirely.
Status check_coverage(const std::vector<TensorEntry>& entries, int64_t data_begin, int64_t file_size,
                      std::string_view name) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(entries[a].begin, entries[a].bytes) < std::pair(entries[b].begin, entries[b].bytes);
  });
  int64_t covered = data_begin;
  for (const size_t i : order) {
    const TensorEntry& entry = entries[i];
    const std::string where = fmt::format("tensor {} begins at byte {}", entry.name, entry.begin);
    if (entry.begin < covered)
      return corrupt(name, fmt::format("{} and overlaps another that ends at {}", where, covered));
    if (entry.begin > covered) return corrupt(name, fmt::format("{} and leaves a hole after byte {}", where, covered));
    covered = entry.begin + entry.bytes;
  }
  if (covered > file_size)
    return corrupt(name,
                   fmt::format("is truncated: {} bytes, its header describes {} ({} bytes missing); download it again",
                               file_size, covered, covered - file_size));
  if (covered < file_size) return corrupt(name, fmt::format("{} bytes follow the last tensor", file_size - covered));
  return {};
}

}  // namespace

bool is_lfs_pointer(std::string_view text) { return text.starts_with("version https://git-lfs.github.com/spec/"); }

std::string describe(const TensorEntry& entry) {
  const auto dims = entry.dim.begin();
  return fmt::format("{} [{}]", dtype_name(entry.dtype), fmt::join(dims, dims + entry.rank, ", "));
}

Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file, std::string_view name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  TRY_ASSIGN(const std::string_view header, find_header(text, name));
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header.size());
  Result<std::vector<TensorEntry>> entries = parse_header(header, data_begin, name);
  if (!entries.ok() && entries.error().code == Code::kInvalidArgument)
    return Error{Code::kCorrupt, entries.error().message};  // a field of the wrong type: no choice of a caller's
  if (entries.ok()) TRY(check_coverage(*entries, data_begin, static_cast<int64_t>(file.size()), name));
  return entries;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  TRY_ASSIGN(MappedFile file, MappedFile::open(path));
  TRY_ASSIGN(std::vector<TensorEntry> entries, parse_safetensors(file.bytes(), path));
  return SafetensorsFile(std::move(file), std::move(entries));
}

TensorView SafetensorsFile::view(const TensorEntry& entry) const {
  CHECK_LE(entry.rank, TensorView::kMaxRank);
  CHECK_LE(entry.begin + entry.bytes, static_cast<int64_t>(file_.size()));
  TensorView view;
  view.data = const_cast<std::byte*>(file_.bytes().data() + entry.begin);
  view.dtype = entry.dtype;
  view.rank = entry.rank == 0 ? 1 : entry.rank;
  if (entry.rank == 0) view.dim[0] = 1;
  for (int i = 0; i < entry.rank; ++i) view.dim[i] = entry.dim[i];
  view.row_stride = view.row_elements();
  return view;
}

}  // namespace ddtree
