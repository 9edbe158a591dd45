// Device memory as Buffer.
#pragma once

#include <string_view>

#include "base/result.h"
#include "tensor/buffer.h"

namespace ddtree::cuda {

// `what` names the purpose in an out-of-memory message.
Result<Buffer> allocate_device(int64_t bytes, std::string_view what);

}  // namespace ddtree::cuda
