// Embedding, plain products and the dense MLP.
#include <algorithm>

#include "backend/ref/math.h"
#include "backend/ref/prepared.h"
#include "backend/ref/ref_backend.h"
#include "backend/source_check.h"

namespace ddtree::ref {

Result<Mlp> load_mlp(const MlpSource& source) {
  Mlp w;
  TRY_ASSIGN(w.gate, load_matrix(source.gate));
  TRY_ASSIGN(w.up, load_matrix(source.up));
  TRY_ASSIGN(w.down, load_matrix(source.down));
  return w;
}

std::vector<double> run_mlp(const Mlp& w, const float* x) {
  std::vector<double> inner = multiply(w.gate, x);
  const std::vector<double> up = multiply(w.up, x);
  for (size_t i = 0; i < inner.size(); ++i) inner[i] = silu(inner[i]) * up[i];
  return multiply(w.down, inner.data());
}

Result<std::unique_ptr<PreparedLinear>> RefBackend::prepare(std::span<const Linear> parts) {
  TRY(check_source(parts));
  auto prepared = std::make_unique<RefLinear>();
  TRY_ASSIGN(prepared->w, load_matrix(parts));
  return std::unique_ptr<PreparedLinear>(std::move(prepared));
}

Result<std::unique_ptr<PreparedMlp>> RefBackend::prepare(const MlpSource& source) {
  TRY(check_source(source));
  auto prepared = std::make_unique<RefMlp>();
  TRY_ASSIGN(prepared->w, load_mlp(source));
  return std::unique_ptr<PreparedMlp>(std::move(prepared));
}

void RefBackend::embed(TensorView out, const PreparedLinear& table) {
  const Matrix& w = static_cast<const RefLinear&>(table).w;
  expect(out, {batch().rows(), w.in});
  for (int32_t t = 0; t < batch().rows(); ++t) {
    const int32_t token = batch().token[t];
    CHECK(token >= 0 && token < w.out);
    std::copy_n(w.row(token), w.in, out.row<float>(t));
  }
  weight_bytes_ += out.bytes();
}

void RefBackend::linear(TensorView out, TensorView x, const PreparedLinear& prepared) {
  const Matrix& w = static_cast<const RefLinear&>(prepared).w;
  expect(x, {x.rows(), w.in});
  expect(out, {x.rows(), w.out});
  for (int64_t t = 0; t < x.rows(); ++t) std::ranges::copy(multiply(w, x.row<float>(t)), out.row<float>(t));
  count(w);
}

void RefBackend::mlp(TensorView out, TensorView x, const PreparedMlp& prepared) {
  const Mlp& w = static_cast<const RefMlp&>(prepared).w;
  expect(x, {x.rows(), w.gate.in});
  expect(out, {x.rows(), w.down.out});
  for (int64_t t = 0; t < x.rows(); ++t) std::ranges::copy(run_mlp(w, x.row<float>(t)), out.row<float>(t));
  for (const Matrix* m : {&w.gate, &w.up, &w.down}) count(*m);
}

}  // namespace ddtree::ref
