// Where the numbers of an estimate come from: curves and services measured earlier, and curve files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/step_estimate.h"

namespace ddtree {

// A curve with both of its columns, of which an estimate reads one.
enum class CurveTimes : uint8_t {
  kBurst,      // a cool card at its full clock
  kSustained,  // back to back, at the clock that the power limit leaves
};

// Machines to start from: their expert curves (the whole layer first, then those of a rank) and measured services.
struct Preset {
  std::string_view name;
  std::string_view machine;
  Gpus gpus;
  std::vector<CostCurve> curves;
  std::vector<ServicePoint> plain;
  std::optional<ServicePoint> drafted;
  std::string_view services;     // who measured them
  std::vector<int32_t> streams;  // to estimate
};

inline constexpr std::string_view kPresetNames = "b300, h200 or rtx-pro-6000";
Result<Preset> find_preset(std::string_view name, CurveTimes times);

// The curve measured for a rank of `tp`, else the first.
const CostCurve& curve_for(const std::vector<CostCurve>& curves, int32_t inter, int32_t tp);

// A curve file (docs/estimate.md), or what op_bench wrote about the experts verb. `name` begins every message.
Result<CostCurve> parse_curve(std::string_view text, std::string_view name, CurveTimes times);

}  // namespace ddtree
