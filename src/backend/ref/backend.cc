// Memory, staging and the verbs that only move rows.
#include <cstring>

#include "backend/ref/ref_backend.h"
#include "backend/source_check.h"
#include "base/checked.h"

namespace ddtree {

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<ref::RefBackend>(); }

namespace ref {
namespace {

constexpr int kAncestorBits = 64 * kAncestorWords;

bool ancestor_bit(const AncestorWords& words, int i) { return (words[i / 64] >> (i % 64)) & 1; }

// A tree row sees itself and only rows before it, so ascending rows are ascending positions along its path.
void check_tree(const Batch& batch, const Segment& segment) {
  CHECK_LE(segment.rows, kAncestorBits);
  for (int i = 0; i < segment.rows; ++i) {
    const AncestorWords& words = batch.ancestors[segment.first_row + i];
    CHECK(ancestor_bit(words, i));
    for (int j = i + 1; j < kAncestorBits; ++j) CHECK(!ancestor_bit(words, j));
  }
}

}  // namespace

void expect(const TensorView& view, std::initializer_list<int64_t> dims) {
  CHECK(view.dtype == DType::kF32);
  CHECK_EQ(static_cast<size_t>(view.rank), dims.size());
  int i = 0;
  for (int64_t d : dims) CHECK_EQ(view.dim[i++], d);
}

Result<Buffer> RefBackend::allocate(int64_t bytes, std::string_view what) { return allocate_poisoned(bytes, what); }

Result<Buffer> RefBackend::prepare_vector(TensorView values) {
  TRY(check_vector(values, "vector"));
  TRY_ASSIGN(Buffer copy, allocate_poisoned(values.elements() * static_cast<int64_t>(sizeof(float)), "vector"));
  const std::vector<float> v = load_vector(values);
  std::memcpy(copy.data(), v.data(), v.size() * sizeof(float));
  return copy;
}

void RefBackend::stage(const Batch& batch) {
  const size_t rows = batch.token.size();
  CHECK_EQ(batch.position.size(), rows);
  CHECK_EQ(batch.kv_row.size(), rows);
  for (const Segment& s : batch.segments) {
    CHECK(s.first_row >= 0 && s.rows >= 0 && s.first_row + s.rows <= batch.rows() && s.context >= 0);
    CHECK_GE(static_cast<int64_t>(s.pages.size()), ceil_div(s.context, kPageRows));
    if (s.tree) {
      CHECK_EQ(batch.ancestors.size(), rows);
      check_tree(batch, s);
    }
  }
  for (int32_t row : batch.head_row) CHECK(row >= 0 && row < batch.rows());
  batch_ = &batch;
}

void RefBackend::gather_rows(TensorView out, TensorView x, std::span<const int32_t> rows) {
  const int64_t width = x.row_elements();
  expect(out, {static_cast<int64_t>(rows.size()), width});
  expect(x, {x.rows(), width});
  for (size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i] >= 0 && rows[i] < x.rows());
    std::memcpy(out.row<float>(i), x.row<float>(rows[i]), width * sizeof(float));
  }
}

void RefBackend::copy_rows(std::span<const KvLayer> caches, std::span<const std::pair<int32_t, int32_t>> rows) {
  for (const KvLayer& cache : caches) {
    const int64_t width = cache.row_elements();
    std::vector<float> saved;
    for (auto [from, to] : rows) {
      CHECK(from >= 0 && from < cache.rows() && to >= 0 && to < cache.rows());
      saved.insert(saved.end(), cache.row<float>(from), cache.row<float>(from) + width);
    }
    for (size_t i = 0; i < rows.size(); ++i)
      std::memcpy(cache.row<float>(rows[i].second), saved.data() + i * width, width * sizeof(float));
  }
}

}  // namespace ref
}  // namespace ddtree
