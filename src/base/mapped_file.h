// MappedFile: a regular file's bytes, read-only, mapped into memory. The size is fixed when it is opened; a file that
// another process shortens meanwhile faults on access, as with every memory map.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddtree {

class MappedFile {
 public:
  // Refuses what is not a regular file (a directory, FIFO or device) without blocking on it.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }

 private:
  MappedFile(std::string path, void* data, size_t size) : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  void* data_ = nullptr;  // null for an empty file
  size_t size_ = 0;
};

}  // namespace ddtree
