// Mixture of experts: route every row, gather each expert's rows, run the experts and add their outputs in ascending
// order of expert, the shared one last.
#pragma once

#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cpu/prepared.h"

namespace ddtree::cpu {

class Moe {
 public:
  explicit Moe(GemmRunner& runner) : runner_(runner), threads_(static_cast<size_t>(runner.threads())) {}

  // Returns the weight bytes read: of the experts, only those that have rows.
  int64_t run(TensorView out, TensorView x, const CpuMoe& w);

 private:
  void route(TensorView x, const CpuMoe& w);
  void gather(int64_t rows, const CpuMoe& w);

  GemmRunner& runner_;
  std::vector<Router::Scratch> threads_;
  Scratch<float> logits_, hidden_, shared_hidden_;
  Scratch<int32_t> expert_;     // [rows, top_k]
  Scratch<float> choice_;       // their weights
  std::vector<int32_t> begin_;  // [experts + 1]: each expert's part of the lists below
  std::vector<int32_t> next_;
  Scratch<int32_t> row_;  // [rows · top_k] by expert, rows ascending
  Scratch<float> weight_;
  std::vector<GemmJob> up_jobs_;
  std::vector<DownJob> down_jobs_;
};

}  // namespace ddtree::cpu
