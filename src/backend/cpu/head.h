// The language-model head: logits in blocks of the vocabulary, reduced while they are in cache to the k largest and the
// log of the sum of exponentials.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cpu/gemm.h"

namespace ddtree::cpu {

// The k largest of a sequence of values with their indices, as rank_key()s.
class TopK {
 public:
  static constexpr int64_t kBlock = 256;  // most values in one add

  void reset(int64_t k);
  // Indices must ascend from call to call.
  void add(const KernelTable& kernels, const float* v, int32_t first_index, int64_t n);
  // The kept keys, at most k, in no order.
  std::span<const uint64_t> keys();

 private:
  static constexpr int64_t kSlack = 4;  // a small k is not worth a look at every new value

  void add_part(const KernelTable& kernels, const float* v, int32_t first_index, int64_t n);
  void keep_best();

  int64_t k_ = 0, size_ = 0, seen_ = 0;
  bool open_ = true;     // everything is a candidate
  float threshold_ = 0;  // else only what is larger
  std::vector<uint64_t> keys_;
};

class Head {
 public:
  explicit Head(GemmRunner& runner) : runner_(runner), threads_(static_cast<size_t>(runner.threads())) {}

  void run(const HeadResult& out, TensorView x, const PackedMatrix& w);

 private:
  static constexpr int64_t kBlock = TopK::kBlock;  // outputs whose exponentials are summed together

  struct Thread {
    Scratch<float> logits;  // [kRowTile, kBlock]
    std::vector<TopK> top;  // [kRowTile]: of this thread's outputs
    std::vector<uint64_t> merged;
  };
  void run_rows(const HeadResult& out, TensorView x, const PackedMatrix& w);
  void run_block(const HeadResult& out, TensorView x, const PackedMatrix& w, int64_t block, Thread& t);
  void merge_row(const HeadResult& out, int64_t row, int64_t blocks, std::vector<uint64_t>& keys);

  GemmRunner& runner_;
  std::vector<Thread> threads_;
  Scratch<float> max_, sum_;  // [kRowTile, blocks]
};

}  // namespace ddtree::cpu
