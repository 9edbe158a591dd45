// Norms and residual sums.
#include "backend/ref/math.h"
#include "backend/ref/ref_backend.h"

namespace ddtree::ref {

void RefBackend::rms_norm(TensorView out, TensorView x, TensorView gain, float eps) {
  const int64_t width = x.row_elements();
  expect(x, {x.rows(), width});
  expect(out, {x.rows(), width});
  expect(gain, {width});
  for (int64_t t = 0; t < x.rows(); ++t) normalise(out.row<float>(t), x.row<float>(t), gain.as<float>(), eps, width);
}

void RefBackend::add(TensorView residual, TensorView delta) {
  const int64_t width = residual.row_elements();
  expect(residual, {residual.rows(), width});
  expect(delta, {residual.rows(), width});
  for (int64_t t = 0; t < residual.rows(); ++t)
    for (int64_t i = 0; i < width; ++i) residual.row<float>(t)[i] += delta.row<float>(t)[i];
}

void RefBackend::add_rms_norm(TensorView out, TensorView residual, TensorView delta, TensorView gain, float eps) {
  add(residual, delta);
  rms_norm(out, residual, gain, eps);
}

}  // namespace ddtree::ref
