#include "cli/step_estimate.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

namespace ddtree {
namespace {

constexpr int32_t kGroup = 32;
constexpr double kLeast = 1e-3;
constexpr double kMostTbps = 1000;
constexpr double kMostMs = 1e6;
constexpr size_t kMostPoints = 4096;

Error bad(std::string message) { return Error{Code::kInvalidArgument, std::move(message)}; }

// Milliseconds of all expert layers of a step on `gpus`.
double experts_ms(const CostModel& m, const Gpus& gpus, double rows) {
  const double by_ranks = m.curve_ranks() / gpus.tp, by_bandwidth = m.curve.bandwidth_tbps / gpus.bandwidth_tbps;
  return layer_ms(m.curve, rows, m.interpolation) * m.layers * by_ranks * by_bandwidth;
}

double rest_of(const CostModel& m, const ServicePoint& p, const Doubt& doubt) {
  return p.step_ms() - experts_ms(m, m.measured, p.streams * (1.0 + p.budget)) * doubt.expert_time;
}

// A rest that was given is that of one stream.
bool beyond_points(const CostModel& m, int32_t streams) {
  if (m.plain_rest_ms) return streams > 1;
  return streams < m.plain.front().streams || streams > m.plain.back().streams;
}

Status check_point(const CostModel& m, const ServicePoint& p) {
  const std::string name = fmt::format("the measured point of {} streams, {} tokens/s", p.streams, p.tokens_per_second);
  if (!std::isfinite(p.tokens_per_second) || p.tokens_per_second <= 0)
    return bad(name + ": give a positive number of tokens/s");
  const StepQuery query{p.streams, p.budget, p.block};
  if (const Status status = check_query(m, query); !status.ok()) return bad(name + ": " + status.error().message);
  const double experts = experts_ms(m, m.measured, static_cast<double>(query.rows()));
  if (p.step_ms() <= experts)
    return bad(fmt::format("{}: its step of {:.3f} ms leaves nothing beside its experts, {:.3f} ms by the curve of {}",
                           name, p.step_ms(), experts, m.curve.machine));
  return {};
}

Status check_ranks(const CostModel& m, int32_t tp) {
  if (tp < 1 || m.inter % (int64_t{tp} * kGroup) != 0)
    return bad(fmt::format("--tp {}: an expert's width of {} must be a multiple of {} per rank", tp, m.inter, kGroup));
  return {};
}

}  // namespace

double expected_experts(const ExpertShape& shape, double rows) {
  return shape.experts * (1 - std::pow(1 - static_cast<double>(shape.top_k) / shape.experts, rows));
}

double expert_bytes(const ExpertShape& shape, bool with_scales) {
  const double weights = 3.0 * shape.hidden * shape.inter;
  return weights / 2 + (with_scales ? weights / kGroup * 2 : 0);
}

int32_t plateau_rows(const ExpertShape& shape) {
  const double missed = 1 - static_cast<double>(shape.top_k) / shape.experts;
  return missed <= 0 ? 1 : static_cast<int32_t>(std::ceil(std::log(1 - kPlateauShare) / std::log(missed)));
}

Status check_curve(const CostCurve& c, std::string_view name) {
  const auto outside = [&](const char* field, double value, double least, double most) -> Status {
    if (value >= least && value <= most) return {};  // NaN is neither
    return bad(fmt::format("{}: {} is {}; give {:g} to {:g}", name, field, value, least, most));
  };
  constexpr int32_t kMostWidth = 1 << 20, kMostExperts = 1 << 16;
  TRY(outside("the bandwidth in TB/s", c.bandwidth_tbps, kLeast, kMostTbps));
  TRY(outside("experts", c.shape.experts, 1, kMostExperts));
  TRY(outside("top_k", c.shape.top_k, 1, c.shape.experts));
  TRY(outside("shared_experts", c.shape.shared, 0, kMostExperts));
  TRY(outside("hidden", c.shape.hidden, kGroup, kMostWidth));
  TRY(outside("inter", c.shape.inter, kGroup, kMostWidth));
  if (c.shape.hidden % kGroup != 0 || c.shape.inter % kGroup != 0)
    return bad(fmt::format("{}: hidden {} and inter {} must be multiples of {}, the width of a group of INT4 weights",
                           name, c.shape.hidden, c.shape.inter, kGroup));
  if (c.points.size() < 2 || c.points.size() > kMostPoints)
    return bad(fmt::format("{}: {} points; give 2 to {}", name, c.points.size(), kMostPoints));
  for (size_t i = 0; i < c.points.size(); ++i) {
    const CurvePoint& p = c.points[i];
    const std::string where = fmt::format("points[{}]: ", i);
    TRY(outside((where + "rows").c_str(), p.rows, 1, kMostWidth));
    TRY(outside((where + "the layer's time in ms").c_str(), p.layer_ms, 1e-6, kMostMs));
    if (p.active_experts) TRY(outside((where + "active_experts").c_str(), *p.active_experts, 1, c.shape.experts));
    if (i > 0 && p.rows <= c.points[i - 1].rows)
      return bad(fmt::format("{}: {}rows {} after {}; give them in ascending order, each once", name, where, p.rows,
                             c.points[i - 1].rows));
  }
  return {};
}

double layer_ms(const CostCurve& curve, double rows, Interpolation interpolation) {
  const auto& points = curve.points;
  CHECK(rows >= points.front().rows && rows <= points.back().rows);
  const auto next = std::find_if(points.begin() + 1, points.end(), [&](const CurvePoint& p) { return rows <= p.rows; });
  const CurvePoint &a = *(next - 1), &b = *next;
  if (interpolation == Interpolation::kLinear)
    return a.layer_ms + (b.layer_ms - a.layer_ms) * (rows - a.rows) / (b.rows - a.rows);
  const double way = std::log(rows / a.rows) / std::log(static_cast<double>(b.rows) / a.rows);
  return a.layer_ms * std::pow(b.layer_ms / a.layer_ms, way);
}

double bandwidth_use(const CostCurve& curve, const CurvePoint& point, bool with_scales) {
  const double experts = point.active_experts.value_or(expected_experts(curve.shape, point.rows)) + curve.shape.shared;
  return experts * expert_bytes(curve.shape, with_scales) / (point.layer_ms / 1000) / (curve.bandwidth_tbps * 1e12);
}

Status check_model(const CostModel& m) {
  const auto positive = [](const char* name, double value, double most) -> Status {
    if (value >= kLeast && value <= most) return {};  // NaN is neither
    return bad(fmt::format("{} {}: give {:g} to {:g}", name, value, kLeast, most));
  };
  if (m.layers < 1 || m.layers > 1000) return bad(fmt::format("--layers {}: give 1 to 1000", m.layers));
  if (m.inter < 1 || m.inter % m.curve.shape.inter != 0)
    return bad(fmt::format("--inter {}: it must be a multiple of the curve's inter of {}, its share of an expert",
                           m.inter, m.curve.shape.inter));
  TRY(positive("--bandwidth", m.target.bandwidth_tbps, kMostTbps));
  TRY(check_ranks(m, m.target.tp));
  TRY(positive("--drafter-scaling", m.drafter_scaling, 100));
  if (m.plain_rest_ms) TRY(positive("--rest-ms", *m.plain_rest_ms, kMostMs));
  if (m.drafted_ratio) TRY(positive("--drafted-ratio", *m.drafted_ratio, 1000));
  if (!m.plain_rest_ms && m.plain.empty())
    return bad("what a step costs beside its experts is unknown: give --rest-ms, --baseline or --preset");
  if (!m.plain_rest_ms || m.drafted)
    TRY(positive("the bandwidth of the measured points", m.measured.bandwidth_tbps, kMostTbps));
  for (size_t i = 0; i < m.plain.size(); ++i) {
    TRY(check_point(m, m.plain[i]));
    if (i > 0 && m.plain[i].streams <= m.plain[i - 1].streams)
      return bad(fmt::format("--baseline: {} streams after {}; give them in ascending order, each once",
                             m.plain[i].streams, m.plain[i - 1].streams));
  }
  if (m.drafted) TRY(check_point(m, *m.drafted));
  CHECK(m.drafted_ratio || m.drafted);
  return {};
}

Status check_query(const CostModel& m, const StepQuery& q) {
  const int32_t first = m.curve.points.front().rows, last = std::min(m.curve.points.back().rows, kMostStepRows);
  if (q.streams < 1 || q.streams > kMostStepRows)
    return bad(fmt::format("--streams {}: give 1 to {}", q.streams, kMostStepRows));
  if (q.rows() < first || q.rows() > last)
    return bad(
        fmt::format("{} streams with {} drafted nodes each are {} rows; the curve of {} and a step's {} rows "
                    "allow {} to {}: give another --streams or --budget",
                    q.streams, q.budget, q.rows(), m.curve.machine, kMostStepRows, first, last));
  if (!(q.rest_factor >= kLeast && q.rest_factor <= 100))
    return bad(fmt::format("--rest-factor {}: give {:g} to 100", q.rest_factor, kLeast));
  return {};
}

double plain_rest_ms(const CostModel& m, int32_t streams, const Doubt& doubt) {
  if (m.plain_rest_ms) return *m.plain_rest_ms * doubt.plain_rest;
  if (m.plain.size() == 1) return rest_of(m, m.plain[0], doubt) * doubt.plain_rest;
  size_t i = 1;  // the line through two neighbours also serves beyond the ends
  while (i + 1 < m.plain.size() && m.plain[i].streams < streams) ++i;
  const ServicePoint &a = m.plain[i - 1], &b = m.plain[i];
  const double at_a = rest_of(m, a, doubt), at_b = rest_of(m, b, doubt);
  const double way = static_cast<double>(streams - a.streams) / (b.streams - a.streams);
  // A service that has become faster with streams must not extrapolate to a step that costs nothing.
  return std::max(at_a + (at_b - at_a) * way, std::min(at_a, at_b) / 2) * doubt.plain_rest;
}

double drafted_ratio(const CostModel& m, const Doubt& doubt) {
  if (m.drafted_ratio) return *m.drafted_ratio * doubt.drafted_ratio;
  return rest_of(m, *m.drafted, doubt) / plain_rest_ms(m, m.drafted->streams, doubt) * doubt.drafted_ratio;
}

StepCost step_cost(const CostModel& m, const StepQuery& q, const Doubt& doubt) {
  StepCost cost;
  cost.experts_ms = experts_ms(m, m.target, static_cast<double>(q.rows())) * doubt.expert_time;
  cost.rest_ms = plain_rest_ms(m, q.streams, doubt) * q.rest_factor;
  if (q.block > 0)
    cost.rest_ms *= drafted_ratio(m, doubt) *
                    std::pow(m.drafter_scaling, std::log2(static_cast<double>(q.block) / m.drafted_block()));
  return cost;
}

std::vector<DoubtShare> doubts(const CostModel& m, const StepQuery& q) {
  const double step = step_cost(m, q).step_ms();
  std::vector<DoubtShare> out;
  const auto vary = [&](DoubtKind kind, const Doubt& doubt) {
    out.push_back({kind, std::abs(step_cost(m, q, doubt).step_ms() / step - 1)});
  };
  if (q.block > 0 && q.block != m.drafted_block()) out.push_back({DoubtKind::kDrafterScaling, kDrafterScalingBand});
  if (q.block > 0 && m.ratio_is_borrowed) vary(DoubtKind::kDraftedRatio, {.drafted_ratio = 1 + kRestBand});
  if (beyond_points(m, q.streams)) vary(DoubtKind::kStreams, {.plain_rest = 1 + kRestBand});
  if (m.target.bandwidth_tbps != m.curve.bandwidth_tbps)
    vary(DoubtKind::kBandwidth, {.expert_time = 1 + kBandwidthBand});
  if (m.curve_ranks() != m.target.tp) vary(DoubtKind::kRanks, {.expert_time = 1 + kRanksBand});
  CostModel other = m;
  other.interpolation = m.interpolation == Interpolation::kLogLog ? Interpolation::kLinear : Interpolation::kLogLog;
  out.push_back({DoubtKind::kInterpolation, std::abs(step_cost(other, q).step_ms() / step - 1)});
  return out;
}

double total_doubt(std::span<const DoubtShare> shares) {
  double sum = 0;
  for (const DoubtShare& share : shares) sum += share.relative * share.relative;
  return std::sqrt(sum);
}

}  // namespace ddtree
