// The table of kernels over one vector type. Included by kernels_<isa>.cc only.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/kernels_attend.h"
#include "backend/cpu/kernels_gemm.h"
#include "backend/cpu/kernels_pointwise.h"

namespace ddtree::cpu {

template <class V>
constexpr KernelTable make_kernels(std::string_view name) {
  using Point = PointwiseKernel<V>;
  using Attend = AttendKernel<V>;
  return {.name = name,
          .gemm = GemmKernel<V>::run,
          .silu_mul = Point::silu_mul,
          .add = Point::add,
          .add_scaled = Point::add_scaled,
          .rms_norm = Point::rms_norm,
          .scores = Attend::scores,
          .softmax = Attend::softmax,
          .mix = Attend::mix,
          .scale = Point::scale,
          .log_sum = Point::log_sum,
          .select_greater = Point::select_greater};
}

}  // namespace ddtree::cpu
