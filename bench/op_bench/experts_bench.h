// The `experts` verb of op_bench: one MoE layer's routed experts at given row counts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/cuda/moe/plan.h"
#include "base/result.h"

namespace ddtree::cuda {

struct ExpertsBench {
  ExpertShape shape;
  std::vector<int32_t> rows;
  std::vector<std::string> modes;  // "auto" or names of expert modes
  int32_t check_rows = 2;          // rows compared with the reference, per row count and mode
  int32_t shared_bytes = 0;        // 0: what the device has
  int samples = 5;
  double sustained_ms = 400;  // 0: burst only
  uint64_t seed = 2026;
};

struct ExpertsPoint {
  int32_t rows = 0;
  std::string mode;
  double active = 0;  // distinct experts, mean over the routings
  double bytes = 0;   // that must move: packed weights of the active experts
  double flops = 0;
  double burst_us = 0, sustained_us = 0;
  double error = 0;    // worst relative error of the checked rows
  std::string clocks;  // just after the sustained loop
};

struct ExpertsReport {
  std::string device;
  double ceiling_gbps = 0;
  double pack_ms = 0;
  std::vector<ExpertsPoint> points;
};

std::string expert_mode_name(ExpertMode mode);

// Prints a line a point on stdout while it goes.
Result<ExpertsReport> bench_experts(const ExpertsBench& bench);

}  // namespace ddtree::cuda
