// Buffer: the only owner of tensor memory, on the host or a device. Move-only; freed by whoever allocated it.
#pragma once

#include <cstdint>
#include <utility>

#include "tensor/tensor_view.h"

namespace ddtree {

class Buffer {
 public:
  using Free = void (*)(void* data, int64_t bytes);

  Buffer() = default;
  Buffer(void* data, int64_t bytes, Free free) : data_(data), bytes_(bytes), free_(free) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) free_(data_, bytes_);
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

  // A view from byte `offset` on; it must fit.
  TensorView view(DType dtype, std::initializer_list<int64_t> dims, int64_t offset = 0) const {
    TensorView v(static_cast<char*>(data_) + offset, dtype, dims);
    CHECK_LE(offset + v.bytes(), bytes_);
    return v;
  }

 private:
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Free free_ = nullptr;
};

}  // namespace ddtree
