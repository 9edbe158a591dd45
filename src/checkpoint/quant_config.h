// The quantization_config block of a config.json.
#pragma once

#include <cstdint>

#include "base/json.h"

namespace ddtree {

// The group size of a compressed-tensors pack-quantized INT4 block (symmetric, by group, no activation order); every
// other scheme is refused by name.
Result<int32_t> parse_int4_group_size(const JsonValue& block);

}  // namespace ddtree
