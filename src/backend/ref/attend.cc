// Attention over the keys that a row may see, in position order.
#include <algorithm>
#include <limits>

#include "backend/ref/math.h"
#include "backend/ref/ref_backend.h"

namespace ddtree::ref {
namespace {

bool sees(const Batch& batch, const Segment& segment, AttendSpec::Mask mask, int32_t row, int32_t other) {
  if (mask == AttendSpec::Mask::kBlock) return true;
  if (!segment.tree) return other <= row;
  return (batch.ancestors[segment.first_row + row][other / 64] >> (other % 64)) & 1;
}

// Physical cache rows of the keys that row `row` of the segment sees.
std::vector<int32_t> visible_keys(const Batch& batch, const Segment& segment, const AttendSpec& spec, int32_t row) {
  const int64_t own = batch.position[segment.first_row + row];
  const int64_t oldest = spec.window == 0 ? std::numeric_limits<int64_t>::min() : own - (spec.window - 1);
  std::vector<int32_t> keys;
  for (int32_t j = 0; j < segment.context; ++j)
    if (j >= oldest) keys.push_back(segment.pages[j / kPageRows] * kPageRows + j % kPageRows);
  for (int32_t other = 0; other < segment.rows; ++other)
    if (sees(batch, segment, spec.mask, row, other) && batch.position[segment.first_row + other] >= oldest)
      keys.push_back(batch.kv_row[segment.first_row + other]);
  return keys;
}

// out [v_dim] of one head: softmax of the scaled scores, then the weighted sum of the values.
void attend_head(float* out, const float* q, const KvLayer& cache, const std::vector<int32_t>& keys, int64_t key_at,
                 int64_t value_at, const AttendSpec& spec) {
  std::vector<double> weight;
  for (int32_t key : keys) weight.push_back(spec.scale * dot(q, cache.row<float>(key) + key_at, spec.qk_dim));
  const double largest = *std::ranges::max_element(weight);
  double sum = 0;
  for (double& w : weight) sum += w = std::exp(w - largest);
  std::vector<double> value(spec.v_dim);
  for (size_t i = 0; i < keys.size(); ++i) {
    const float* v = cache.row<float>(keys[i]) + value_at;
    for (int64_t j = 0; j < spec.v_dim; ++j) value[j] += weight[i] * v[j];
  }
  for (int64_t j = 0; j < spec.v_dim; ++j) out[j] = static_cast<float>(value[j] / sum);
}

}  // namespace

void RefBackend::attend(TensorView out, TensorView q, KvLayer cache, const AttendSpec& spec) {
  // A cache row holds the keys alone (MLA: the value is the key's beginning) or the keys, then the values.
  const bool latent = cache.row_elements() == spec.qk_dim;
  const int64_t keys_width = static_cast<int64_t>(spec.kv_heads) * spec.qk_dim;
  if (latent) {
    CHECK_EQ(spec.kv_heads, 1);
    CHECK_LE(spec.v_dim, spec.qk_dim);
  } else {
    CHECK_EQ(cache.row_elements(), keys_width + static_cast<int64_t>(spec.kv_heads) * spec.v_dim);
  }
  CHECK_EQ(spec.heads % spec.kv_heads, 0);
  expect(q, {batch().rows(), spec.heads, spec.qk_dim});
  expect(out, {batch().rows(), spec.heads, spec.v_dim});
  for (const Segment& segment : batch().segments) {
    for (int32_t row = 0; row < segment.rows; ++row) {
      const std::vector<int32_t> keys = visible_keys(batch(), segment, spec, row);
      for (int32_t key : keys) CHECK(key >= 0 && key < cache.rows());
      const int64_t t = segment.first_row + row;
      for (int64_t h = 0; h < spec.heads; ++h) {
        const int64_t kv_head = h / (spec.heads / spec.kv_heads);
        attend_head(out.row<float>(t) + h * spec.v_dim, q.row<float>(t) + h * spec.qk_dim, cache, keys,
                    kv_head * spec.qk_dim, latent ? 0 : keys_width + kv_head * spec.v_dim, spec);
      }
    }
  }
}

}  // namespace ddtree::ref
