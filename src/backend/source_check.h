// Validates weight sources against their own fields. Every backend's prepare() begins here, so that a checkpoint whose
// tensors contradict its configuration is refused with the same words everywhere.
#pragma once

#include <span>
#include <string_view>

#include "backend/weights.h"
#include "base/result.h"

namespace ddtree {

Status check_source(std::span<const Linear> parts);  // at least one, each with the same `in`
Status check_source(const MlaSource& source);
Status check_source(const GqaSource& source);
Status check_source(const MlpSource& source);
Status check_source(const MoeSource& source);
Status check_vector(const TensorView& values, std::string_view name);  // [n ≥ 1] F32, BF16 or F16

}  // namespace ddtree
