// Grouped-query attention: per-head norms, rotation, and the cache row [keys of all heads, values of all heads].
#include <algorithm>

#include "backend/ref/math.h"
#include "backend/ref/prepared.h"
#include "backend/ref/ref_backend.h"
#include "backend/source_check.h"

namespace ddtree::ref {
namespace {

void norm_and_rotate(std::vector<double>& heads, int64_t head_dim, const std::vector<float>& gain, const RefGqa& w,
                     int32_t position) {
  for (size_t at = 0; at < heads.size(); at += head_dim) {
    double* head = heads.data() + at;
    if (!gain.empty()) normalise(head, head, gain.data(), w.eps, head_dim);
    rotate(head, w.rope, position);
  }
}

}  // namespace

Result<std::unique_ptr<PreparedGqa>> RefBackend::prepare(const GqaSource& source) {
  TRY(check_source(source));
  auto w = std::make_unique<RefGqa>();
  w->heads = source.heads;
  w->kv_heads = source.kv_heads;
  w->head_dim = source.head_dim;
  TRY_ASSIGN(w->q, load_matrix(source.q));
  TRY_ASSIGN(w->k, load_matrix(source.k));
  TRY_ASSIGN(w->v, load_matrix(source.v));
  TRY_ASSIGN(w->o, load_matrix(source.o));
  w->q_norm = load_vector(source.q_norm);
  w->k_norm = load_vector(source.k_norm);
  w->eps = source.norm_eps;
  w->rope = source.rope;
  return std::unique_ptr<PreparedGqa>(std::move(w));
}

void RefBackend::gqa_project(TensorView q, TensorView x, const PreparedGqa& prepared, KvLayer cache) {
  const auto& w = static_cast<const RefGqa&>(prepared);
  gqa_context(x, prepared, cache);
  expect(q, {batch().rows(), w.heads, w.head_dim});
  for (int32_t t = 0; t < batch().rows(); ++t) {
    std::vector<double> queries = multiply(w.q, x.row<float>(t));
    norm_and_rotate(queries, w.head_dim, w.q_norm, w, batch().position[t]);
    std::ranges::copy(queries, q.row<float>(t));
  }
  count(w.q);
}

void RefBackend::gqa_context(TensorView x, const PreparedGqa& prepared, KvLayer cache) {
  const auto& w = static_cast<const RefGqa&>(prepared);
  expect(x, {batch().rows(), w.k.in});
  expect(cache, {cache.rows(), 2 * w.kv_heads * w.head_dim});
  for (int32_t t = 0; t < batch().rows(); ++t) {
    std::vector<double> keys = multiply(w.k, x.row<float>(t));
    norm_and_rotate(keys, w.head_dim, w.k_norm, w, batch().position[t]);
    CHECK(batch().kv_row[t] >= 0 && batch().kv_row[t] < cache.rows());
    float* to = std::ranges::copy(keys, cache.row<float>(batch().kv_row[t])).out;
    std::ranges::copy(multiply(w.v, x.row<float>(t)), to);
  }
  count(w.k);
  count(w.v);
}

void RefBackend::gqa_output(TensorView out, TensorView attended, const PreparedGqa& prepared) {
  const auto& w = static_cast<const RefGqa&>(prepared);
  expect(attended, {attended.rows(), w.heads, w.head_dim});
  expect(out, {attended.rows(), w.o.out});
  for (int64_t t = 0; t < out.rows(); ++t) std::ranges::copy(multiply(w.o, attended.row<float>(t)), out.row<float>(t));
  count(w.o);
}

}  // namespace ddtree::ref
