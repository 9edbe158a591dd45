// One .safetensors file: 8 bytes of header length, a JSON header, the data. Everything the header claims is checked
// when the file is opened; in particular the tensors cover the data section exactly: no overlap, no hole, no byte
// missing at the end and none to spare.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/mapped_file.h"
#include "base/result.h"
#include "tensor/tensor_view.h"

namespace ddtree {

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the format's own limit

struct TensorEntry {
  static constexpr int kMaxRank = 8;

  std::string name;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> dim = {};
  int64_t begin = 0;  // bytes into the file
  int64_t bytes = 0;
};

// "BF16 [3, 256]", for messages.
std::string describe(const TensorEntry& entry);

// Reads and checks the header of a whole file in memory. `name` begins every message.
Result<std::vector<TensorEntry>> parse_safetensors(std::span<const std::byte> file, std::string_view name);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<TensorEntry>& entries() const { return entries_; }

  // A view of the mapped bytes, never to be written to. The format promises no alignment: read values through memcpy or
  // unaligned loads. Ranks 1 to TensorView::kMaxRank, others are a caller's mistake; a scalar is [1].
  TensorView view(const TensorEntry& entry) const;

 private:
  SafetensorsFile(MappedFile file, std::vector<TensorEntry> entries)
      : file_(std::move(file)), entries_(std::move(entries)) {}

  MappedFile file_;
  std::vector<TensorEntry> entries_;
};

// True for the few lines of text that git-lfs leaves in place of a file it has not downloaded.
bool is_lfs_pointer(std::string_view text);

}  // namespace ddtree
