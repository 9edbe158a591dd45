#include "row_run.h"

namespace ddtree::ops {
namespace {

constexpr int32_t kSpareCacheRows = 5;

TensorView no_data(std::initializer_list<int64_t> dims) { return TensorView(nullptr, DType::kF32, dims); }

}  // namespace

RowRun::RowRun(Backend& backend, std::span<const Row> rows) : backend_(backend), rows_(rows) {
  const auto n = static_cast<int32_t>(rows.size());
  const std::vector<int32_t> slots = Random(n + 1).permutation(n + kSpareCacheRows);
  for (int32_t t = 0; t < n; ++t) {
    batch_.token.push_back(rows[t].token);
    batch_.position.push_back(rows[t].position);
    batch_.kv_row.push_back(slots[t]);
    batch_.head_row.push_back(t);
  }
  batch_.segments.push_back({.stream = 0, .first_row = 0, .rows = n, .context = 0, .tree = false, .pages = {}});
  backend_.stage(batch_);
}

std::vector<float> RowRun::values(int64_t from, int64_t width) const {
  std::vector<float> all;
  for (const Row& row : rows_) all.insert(all.end(), row.x.begin() + from, row.x.begin() + from + width);
  return all;
}

TensorView RowRun::input(int64_t from, std::initializer_list<int64_t> row_dims) {
  const int64_t width = no_data(row_dims).elements();
  const std::vector<float> x = values(from, width);
  const TensorView flat = inputs_.emplace_back(Guarded(backend_, {rows(), width}, x), x).first.view();
  if (row_dims.size() == 1) return flat;
  return TensorView(flat.data, flat.dtype, {rows(), row_dims.begin()[0], row_dims.begin()[1]});
}

TensorView RowRun::updated(int64_t from, int64_t width) {
  const TensorView view = output(width);
  std::ranges::copy(values(from, width), view.as<float>());
  return view;
}

TensorView RowRun::output(DType dtype, int64_t width) {
  return outputs_.emplace_back(Guarded(backend_, dtype, {rows(), width})).tensor.view();
}

TensorView RowRun::output(std::initializer_list<int64_t> row_dims) {
  const TensorView flat = output(DType::kF32, no_data(row_dims).elements());
  if (row_dims.size() == 1) return flat;
  return TensorView(flat.data, flat.dtype, {rows(), row_dims.begin()[0], row_dims.begin()[1]});
}

TensorView RowRun::cache(int64_t width) {
  return outputs_.emplace_back(Guarded(backend_, DType::kF32, {rows() + kSpareCacheRows, width}), true).tensor.view();
}

void RowRun::expect_untouched_cache_rows(const TensorView& cache) const {
  std::vector<bool> written(cache.rows());
  for (int32_t row : batch_.kv_row) written[row] = true;
  const std::vector<uint32_t> poison(cache.row_elements(), 0xffffffffu);
  for (int64_t r = 0; r < cache.rows(); ++r) {
    if (written[r]) continue;
    EXPECT_EQ(std::memcmp(cache.row<uint32_t>(r), poison.data(), poison.size() * sizeof(uint32_t)), 0)
        << "cache row " << r << " belongs to nobody in this batch";
  }
}

std::vector<float> RowRun::finish() {
  const Status status = backend_.finish();
  EXPECT_TRUE(status.ok());
  for (const auto& [tensor, before] : inputs_) {
    tensor.expect_guards();
    EXPECT_TRUE(same_bits(tensor.values(), before)) << "an input was changed";
  }
  for (const Output& out : outputs_) {
    out.tensor.expect_guards();
    if (out.is_cache) expect_untouched_cache_rows(out.tensor.view());
  }
  std::vector<float> all;
  for (int64_t t = 0; t < rows(); ++t) {
    for (const Output& out : outputs_) {
      const TensorView view = out.tensor.view();
      const int64_t r = out.is_cache ? batch_.kv_row[t] : t;
      if (view.dtype == DType::kI32)
        all.insert(all.end(), view.row<int32_t>(r), view.row<int32_t>(r) + view.row_elements());
      else
        all.insert(all.end(), view.row<float>(r), view.row<float>(r) + view.row_elements());
    }
  }
  return all;
}

}  // namespace ddtree::ops
