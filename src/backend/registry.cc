#include "backend/registry.h"

#include <fmt/format.h>

#include "backend/cpu/cpu_backend.h"
#include "backend/ref/ref_backend.h"

namespace ddtree {

Result<std::unique_ptr<Backend>> make_backend(const BackendOptions& options) {
  if (options.isa != "auto" && options.isa != "portable" && options.isa != "avx512")
    return Error{Code::kInvalidArgument,
                 fmt::format("instruction set \"{}\" is unknown; use auto, portable or avx512", options.isa)};
  if (options.threads < 0)
    return Error{Code::kInvalidArgument,
                 fmt::format("threads is {}; it must be 0 (one per core) or more", options.threads)};
  if (options.device == "cpu") return make_cpu_backend(options);
  if (options.device == "ref") return make_ref_backend();
  return Error{Code::kInvalidArgument,
               fmt::format("device \"{}\" is unknown; this build has cpu and ref", options.device)};
}

}  // namespace ddtree
