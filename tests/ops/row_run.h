// RowRun: one run of a row verb. Stages the rows as a batch, holds the guarded inputs and outputs, and collects.
#pragma once

#include <deque>

#include "guarded.h"
#include "row_verb.h"

namespace ddtree::ops {

class RowRun {
 public:
  RowRun(Backend& backend, std::span<const Row> rows);

  int64_t rows() const { return static_cast<int64_t>(rows_.size()); }
  TensorView input(int64_t from, std::initializer_list<int64_t> row_dims);  // values from … of every row's x
  TensorView input(int64_t from, int64_t width) { return input(from, {width}); }
  TensorView updated(int64_t from, int64_t width);  // an input that is an output too
  TensorView output(std::initializer_list<int64_t> row_dims);
  TensorView output(int64_t width) { return output({width}); }
  TensorView output(DType dtype, int64_t width);
  TensorView cache(int64_t width);  // the rows' cache rows are an output; the others must stay untouched

  std::vector<float> finish();  // [rows, all outputs in the order asked for]

 private:
  struct Output {
    Guarded tensor;
    bool is_cache = false;
  };
  void expect_untouched_cache_rows(const TensorView& cache) const;
  std::vector<float> values(int64_t from, int64_t width) const;

  Backend& backend_;
  std::span<const Row> rows_;
  Batch batch_;
  std::deque<std::pair<Guarded, std::vector<float>>> inputs_;
  std::deque<Output> outputs_;
};

template <class T>
std::shared_ptr<const T> ready(Result<std::unique_ptr<T>> prepared) {
  if (!prepared.ok()) check_failed(__FILE__, __LINE__, "prepare", prepared.error().message);
  return *std::move(prepared);
}

}  // namespace ddtree::ops
