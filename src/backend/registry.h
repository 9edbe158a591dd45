// The backends this build has, by name. The only place that names their factories.
#pragma once

#include <memory>
#include <string>

#include "backend/backend.h"

namespace ddtree {

struct BackendOptions {
  std::string device = "cpu";  // "cpu" or "ref"
  int32_t threads = 0;         // 0: one per core this process may use
  std::string isa = "auto";    // "auto", "portable" or "avx512"; tests force one
};

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options);

}  // namespace ddtree
