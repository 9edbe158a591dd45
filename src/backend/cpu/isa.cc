#include "backend/cpu/isa.h"

#include <fmt/format.h>

namespace ddtree::cpu {
namespace {

// What kernels_avx512.cc is compiled for.
bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("fma");
}

}  // namespace

Result<const KernelTable*> select_kernels(std::string_view isa) {
  if (isa == "portable") return &kPortableKernels;
  if (isa == "auto") return has_avx512() ? &kAvx512Kernels : &kPortableKernels;
  if (isa != "avx512")
    return Error{Code::kInvalidArgument,
                 fmt::format("instruction set \"{}\" is unknown; use auto, portable or avx512", isa)};
  if (!has_avx512())
    return Error{Code::kUnsupported,
                 "instruction set \"avx512\": this processor lacks AVX-512 F, BW, DQ or VL; use auto or portable"};
  return &kAvx512Kernels;
}

}  // namespace ddtree::cpu
