// An estimate as text and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/step_estimate.h"

namespace ddtree {

struct EstimateLine {
  StepQuery query;
  std::vector<double> accepted;
  bool measured = false;  // one of the points that the rest was derived from
};

struct EstimateReport {
  std::string machine;
  CostModel model;
  std::string services;                   // who measured the plain and drafted points
  std::vector<EstimateLine> lines;        // a plain one, then at least one drafted
  std::vector<int32_t> streams, budgets;  // of the plateau's answer
};

std::string to_text(const EstimateReport& report);
std::string to_json(const EstimateReport& report);

}  // namespace ddtree
