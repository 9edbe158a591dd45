// The CPU backend in exact mode: float32 activations and sums, every sum in one fixed order.
#pragma once

#include <memory>

#include "backend/registry.h"

namespace ddtree {

Result<std::unique_ptr<Backend>> make_cpu_backend(const BackendOptions& options);

}  // namespace ddtree
