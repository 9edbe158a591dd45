// The language-model head: logits in blocks of the vocabulary, reduced while they are in cache to the k largest and the
// log of the sum of exponentials.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cpu/gemm.h"

namespace ddtree::cpu {

// The k largest values with their indices: descending, equal ones by ascending index, NaN last. Indices must come in
// ascending order.
class TopK {
 public:
  void reset(int64_t k, float* values, int32_t* ids);
  void add(const KernelTable& kernels, const float* v, int32_t first_id, int64_t n);
  int64_t size() const { return size_; }

 private:
  bool before(float a, float b) const;
  void insert(float v, int32_t id);

  int64_t k_ = 0, size_ = 0;
  float* values_ = nullptr;
  int32_t* ids_ = nullptr;
};

class Head {
 public:
  explicit Head(GemmRunner& runner) : runner_(runner), threads_(static_cast<size_t>(runner.threads())) {}

  void run(const HeadResult& out, TensorView x, const PackedMatrix& w);

 private:
  static constexpr int64_t kBlock = 256;  // outputs whose exponentials are summed together

  struct Thread {
    Scratch<float> logits;  // [kRowTile, kBlock]
    Scratch<float> value;   // [kRowTile, k] largest of this thread's outputs
    Scratch<int32_t> id;
    std::vector<TopK> top;  // [kRowTile]
  };
  void run_rows(const HeadResult& out, TensorView x, const PackedMatrix& w);
  void run_block(const HeadResult& out, TensorView x, const PackedMatrix& w, int64_t block, Thread& t);
  void merge_row(const HeadResult& out, int64_t row, int64_t blocks);

  GemmRunner& runner_;
  std::vector<Thread> threads_;
  Scratch<float> max_, sum_;  // [kRowTile, blocks]
};

}  // namespace ddtree::cpu
