// Memory: the buffers that one object holds on a backend, taken once and kept until it goes.
#pragma once

#include <utility>
#include <vector>

#include "backend/backend.h"

namespace ddtree {

class Memory {
 public:
  explicit Memory(Backend& backend) : backend_(&backend) {}

  // `what` names the purpose in an out-of-memory message.
  Result<TensorView> take(std::string_view what, DType dtype, std::initializer_list<int64_t> dims) {
    const TensorView shape(nullptr, dtype, dims);
    TRY_ASSIGN(Buffer buffer, backend_->allocate(shape.bytes(), what));
    const TensorView view = buffer.view(dtype, dims);
    buffers_.push_back(std::move(buffer));
    return view;
  }
  Result<TensorView> activations(std::initializer_list<int64_t> dims) {
    return take("activations", backend_->activation_dtype(), dims);
  }

  // A float32 copy of a norm's gain.
  Result<TensorView> vector(TensorView values) {
    TRY_ASSIGN(Buffer buffer, backend_->prepare_vector(values));
    const TensorView view = buffer.view(DType::kF32, {values.elements()});
    buffers_.push_back(std::move(buffer));
    return view;
  }

 private:
  Backend* backend_;
  std::vector<Buffer> buffers_;
};

}  // namespace ddtree
