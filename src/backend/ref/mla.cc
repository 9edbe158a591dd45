// Multi-head latent attention, absorbed: the query is carried into the latent space, and what was attended out of it.
#include <algorithm>

#include "backend/ref/math.h"
#include "backend/ref/prepared.h"
#include "backend/ref/ref_backend.h"
#include "backend/source_check.h"

namespace ddtree::ref {

Result<std::unique_ptr<PreparedMla>> RefBackend::prepare(const MlaSource& source) {
  TRY(check_source(source));
  auto w = std::make_unique<RefMla>();
  w->heads = source.heads;
  w->kv_lora = source.kv_lora;
  w->nope = source.nope;
  w->v = source.v;
  TRY_ASSIGN(w->q_a, load_matrix(source.q_a));
  TRY_ASSIGN(w->q_b, load_matrix(source.q_b));
  TRY_ASSIGN(w->kv_a, load_matrix(source.kv_a));
  TRY_ASSIGN(w->kv_b, load_matrix(source.kv_b));
  TRY_ASSIGN(w->o, load_matrix(source.o));
  w->q_a_norm = load_vector(source.q_a_norm);
  w->kv_a_norm = load_vector(source.kv_a_norm);
  w->eps = source.norm_eps;
  w->rope = source.rope;
  return std::unique_ptr<PreparedMla>(std::move(w));
}

void RefBackend::mla_project(TensorView q, TensorView x, const PreparedMla& prepared, KvLayer cache) {
  const auto& w = static_cast<const RefMla&>(prepared);
  const int64_t query = w.nope + w.rope.dim;
  const int64_t key = w.kv_lora + w.rope.dim;
  expect(x, {batch().rows(), w.kv_a.in});
  expect(q, {batch().rows(), w.heads, key});
  expect(cache, {cache.rows(), key});
  for (int32_t t = 0; t < batch().rows(); ++t) {
    const float* row = x.row<float>(t);
    const int32_t position = batch().position[t];

    std::vector<double> latent = multiply(w.kv_a, row);
    normalise(latent.data(), latent.data(), w.kv_a_norm.data(), w.eps, w.kv_lora);
    rotate(latent.data() + w.kv_lora, w.rope, position);
    CHECK(batch().kv_row[t] >= 0 && batch().kv_row[t] < cache.rows());
    std::ranges::copy(latent, cache.row<float>(batch().kv_row[t]));

    std::vector<double> queries;
    if (w.q_a.empty()) {
      queries = multiply(w.q_b, row);
    } else {
      std::vector<double> low = multiply(w.q_a, row);
      normalise(low.data(), low.data(), w.q_a_norm.data(), w.eps, w.q_a.out);
      queries = multiply(w.q_b, low.data());
    }
    for (int64_t h = 0; h < w.heads; ++h) {
      double* head = queries.data() + h * query;
      rotate(head + w.nope, w.rope, position);
      std::vector<double> absorbed(w.kv_lora);  // W_UKᵀ · q_nope
      for (int64_t i = 0; i < w.nope; ++i) {
        const float* up = w.kv_b.row(h * (w.nope + w.v) + i);
        for (int64_t j = 0; j < w.kv_lora; ++j) absorbed[j] += head[i] * up[j];
      }
      float* to = std::ranges::copy(absorbed, q.row<float>(t) + h * key).out;
      std::copy_n(head + w.nope, w.rope.dim, to);
    }
  }
  for (const Matrix* m : {&w.q_a, &w.q_b, &w.kv_a}) count(*m);
  weight_bytes_ += w.heads * w.nope * w.kv_lora * static_cast<int64_t>(sizeof(float));
}

void RefBackend::mla_output(TensorView out, TensorView attended, const PreparedMla& prepared) {
  const auto& w = static_cast<const RefMla&>(prepared);
  expect(attended, {attended.rows(), w.heads, w.kv_lora});
  expect(out, {attended.rows(), w.o.out});
  for (int64_t t = 0; t < out.rows(); ++t) {
    std::vector<double> values(w.heads * w.v);
    for (int64_t h = 0; h < w.heads; ++h)
      for (int64_t i = 0; i < w.v; ++i)
        values[h * w.v + i] =
            dot(w.kv_b.row(h * (w.nope + w.v) + w.nope + i), attended.row<float>(t) + h * w.kv_lora, w.kv_lora);
    std::ranges::copy(multiply(w.o, values.data()), out.row<float>(t));
  }
  count(w.o);
  weight_bytes_ += w.heads * w.v * w.kv_lora * static_cast<int64_t>(sizeof(float));
}

}  // namespace ddtree::ref
