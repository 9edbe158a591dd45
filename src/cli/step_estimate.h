// What a decode step costs on given hardware, from a measured curve of its expert layers and measured speeds of whole
// steps. Arithmetic on plain data: no files, no flags, no text.
//
//   step = experts + rest
//   experts = curve at streams · (1 + budget) rows, times layers, by ranks and by bandwidth
//   rest    = a measured step less its experts; drafting multiplies it, and a longer block again
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddtree {

inline constexpr int32_t kMostStepRows = 1088;      // rows of one pass, over all streams
inline constexpr int32_t kMostBudget = 255;         // drafted nodes of a tree
inline constexpr int32_t kReferenceBlock = 8;       // the block of the drafted point in kDraftedRatio
inline constexpr double kDraftedRatio = 1.725;      // rest of a drafted step ÷ plain, measured on a B300 at block 8
inline constexpr double kDrafterScaling = 1.25;     // of the drafted rest, for each doubling of the block
inline constexpr double kDrafterScalingBand = 0.3;  // what not knowing it better is worth, of the result
inline constexpr double kBandwidthBand = 0.2;       // of expert time that was scaled by bandwidth
inline constexpr double kRanksBand = 0.25;          // of expert time that was divided by ranks
inline constexpr double kRestBand = 0.3;            // of a rest taken over from another machine or number of streams
inline constexpr double kPlateauShare = 0.99;       // of the experts: where a further row reads nearly nothing new

enum class Interpolation : uint8_t { kLogLog, kLinear };

// INT4 experts in groups of 32 with 16-bit scales, as one GPU of the curve holds them.
struct ExpertShape {
  int32_t experts = 0;
  int32_t hidden = 0;
  int32_t inter = 0;
  int32_t top_k = 0;
  int32_t shared = 0;  // shared experts that the measured layer contains
};

// Distinct routed experts that so many rows reach, if every row chooses uniformly and on its own.
double expected_experts(const ExpertShape& shape, double rows);
double expert_bytes(const ExpertShape& shape, bool with_scales);
// The fewest rows that reach kPlateauShare of the experts.
int32_t plateau_rows(const ExpertShape& shape);

struct CurvePoint {
  int32_t rows = 0;
  double layer_ms = 0;
  std::optional<double> active_experts;  // distinct routed ones; none: expected_experts()
};

struct CostCurve {
  std::string machine;
  std::string source;  // who measured it, and how
  double bandwidth_tbps = 0;
  ExpertShape shape;
  std::vector<CurvePoint> points;  // at least two, rows ascending
};

Status check_curve(const CostCurve& curve, std::string_view name);
// `rows` lies between the first and the last point.
double layer_ms(const CostCurve& curve, double rows, Interpolation interpolation);
// Bytes of the experts that were read ÷ time ÷ bandwidth.
double bandwidth_use(const CostCurve& curve, const CurvePoint& point, bool with_scales);

struct Gpus {
  double bandwidth_tbps = 0;
  int32_t tp = 1;
};

// A whole service, as measured. Plain: budget and block 0, accepted 1.
struct ServicePoint {
  int32_t streams = 1;
  int32_t budget = 0;
  int32_t block = 0;
  double accepted = 1;
  double tokens_per_second = 0;  // of all streams together

  double step_ms() const { return streams * accepted * 1000 / tokens_per_second; }
};

struct CostModel {
  CostCurve curve;
  Interpolation interpolation = Interpolation::kLogLog;
  int32_t layers = 60;   // with experts
  int32_t inter = 2048;  // of an expert, over all ranks
  Gpus target;

  // The rest of a plain step: given, or from plain points (ascending in streams) measured on `measured`.
  std::optional<double> plain_rest_ms;  // of one stream; more are assumed to have the same
  std::vector<ServicePoint> plain;
  Gpus measured;
  // The rest of a drafted step: given as a multiple of plain, or from a drafted point compared with plain at its
  // number of streams.
  std::optional<double> drafted_ratio;
  std::optional<ServicePoint> drafted;
  bool ratio_is_borrowed = false;  // measured on another machine
  double drafter_scaling = kDrafterScaling;

  int32_t drafted_block() const { return drafted ? drafted->block : kReferenceBlock; }
  double curve_ranks() const { return static_cast<double>(inter) / curve.shape.inter; }
};

// One kind of step. Plain: budget and block 0.
struct StepQuery {
  int32_t streams = 1;
  int32_t budget = 0;
  int32_t block = 0;
  double rest_factor = 1;

  int64_t rows() const { return int64_t{streams} * (1 + budget); }
};

struct StepCost {
  double experts_ms = 0;
  double rest_ms = 0;

  double step_ms() const { return experts_ms + rest_ms; }
  double experts_share() const { return experts_ms / step_ms(); }
  double tokens_per_second(int32_t streams, double accepted) const { return streams * accepted * 1000 / step_ms(); }
};

// What the model is unsure of, as factors on its parts; 1 where it is trusted.
struct Doubt {
  double expert_time = 1;
  double drafted_ratio = 1;
  double plain_rest = 1;
};

// Everything below CHECKs what these two refuse.
Status check_model(const CostModel& model);
Status check_query(const CostModel& model, const StepQuery& query);

StepCost step_cost(const CostModel& model, const StepQuery& query, const Doubt& doubt = {});
// The rest of a plain step, and how many times as long that of a drafted step of drafted_block() is.
double plain_rest_ms(const CostModel& model, int32_t streams, const Doubt& doubt = {});
double drafted_ratio(const CostModel& model, const Doubt& doubt = {});

enum class DoubtKind : uint8_t { kDrafterScaling, kBandwidth, kRanks, kInterpolation, kDraftedRatio, kStreams };
struct DoubtShare {
  DoubtKind kind;
  double relative = 0;  // of the result, to either side
};
// One entry for each assumption that this step rests on, computed by varying it.
std::vector<DoubtShare> doubts(const CostModel& model, const StepQuery& query);
double total_doubt(std::span<const DoubtShare> shares);  // root of the sum of squares

}  // namespace ddtree
