// The router's decision for one row, in float32: which experts, and with what weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/weights.h"

namespace ddtree::cpu {

class Router {
 public:
  struct Scratch {  // one per thread
    std::vector<float> biased;
    std::vector<uint64_t> experts, groups;  // rank_key()s
  };

  // `bias` [experts] takes part in the selection only; empty: none.
  Router(const MoeRouting& routing, std::vector<float> bias) : routing_(routing), bias_(std::move(bias)) {}

  int32_t top_k() const { return routing_.top_k; }

  // From the router's logits [experts], which are overwritten: top_k experts in ascending order, and their weights.
  // Equal scores go to the lower expert; NaN ranks below every number.
  void route(std::span<float> logits, Scratch& scratch, int32_t* experts, float* weights) const;

 private:
  void list_candidates(Scratch& scratch) const;

  MoeRouting routing_;
  std::vector<float> bias_;
};

}  // namespace ddtree::cpu
