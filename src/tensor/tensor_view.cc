#include "tensor/tensor_view.h"

namespace ddtree {

std::string describe(const TensorView& view) {
  std::string out(dtype_name(view.dtype));
  out += " [";
  for (int i = 0; i < view.rank; ++i) out += (i ? ", " : "") + std::to_string(view.dim[i]);
  return out + "]";
}

}  // namespace ddtree
