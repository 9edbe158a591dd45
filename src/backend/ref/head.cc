// The language-model head: logits, their k largest, and the logarithm of the sum of their exponentials.
#include <algorithm>
#include <cmath>

#include "backend/ref/math.h"
#include "backend/ref/prepared.h"
#include "backend/ref/ranking.h"
#include "backend/ref/ref_backend.h"

namespace ddtree::ref {
namespace {

double log_sum_exp(const std::vector<float>& logits) {
  const double largest = *std::ranges::max_element(logits);
  if (std::isinf(largest)) return largest;
  double sum = 0;
  for (float l : logits) sum += std::exp(l - largest);
  return largest + std::log(sum);
}

}  // namespace

void RefBackend::head(const HeadResult& out, TensorView x, const PreparedLinear& prepared) {
  const Matrix& w = static_cast<const RefLinear&>(prepared).w;
  const int64_t rows = x.rows();
  const int64_t k = out.top_value.row_elements();
  expect(x, {rows, w.in});
  expect(out.top_value, {rows, k});
  expect(out.lse, {rows});
  CHECK(out.top_id.dtype == DType::kI32 && out.top_id.rows() == rows && out.top_id.row_elements() == k);
  CHECK_LE(k, w.out);
  if (!out.logits.empty()) expect(out.logits, {rows, w.out});
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<float> logits(w.out);
    std::ranges::copy(multiply(w, x.row<float>(r)), logits.begin());
    if (!out.logits.empty()) std::ranges::copy(logits, out.logits.row<float>(r));
    const std::vector<int32_t> top = largest(logits, k);
    for (int64_t i = 0; i < k; ++i) {
      out.top_value.row<float>(r)[i] = logits[top[i]];
      out.top_id.row<int32_t>(r)[i] = top[i];
    }
    *out.lse.row<float>(r) = static_cast<float>(log_sum_exp(logits));
  }
  count(w);
}

}  // namespace ddtree::ref
