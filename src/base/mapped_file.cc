#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace ddtree {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

Error system_error(const std::string& path, const char* what, int code) {
  const Code kind = code == ENOENT || code == ENOTDIR  ? Code::kNotFound
                    : code == ENOMEM || code == EMFILE ? Code::kExhausted
                                                       : Code::kInvalidArgument;
  return Error{kind, path + ": " + what + ": " + std::strerror(code)};
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return system_error(path, "cannot open", errno);
  struct stat info = {};
  if (::fstat(file.fd, &info) != 0) return system_error(path, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) return Error{Code::kInvalidArgument, path + ": is a directory, a file is needed"};
  if (!S_ISREG(info.st_mode)) return Error{Code::kInvalidArgument, path + ": is not a regular file"};
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) return MappedFile(path, nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return system_error(path, "cannot map", errno);
  return MappedFile(path, data, size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace ddtree
