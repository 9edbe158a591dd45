#include "cli/estimate_report.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/json_writer.h"

namespace ddtree {
namespace {

using Out = std::back_insert_iterator<std::string>;

struct Statement {
  const char* kind;  // measured, given, scaled or assumed
  std::string text;
};

const char* interpolation_name(Interpolation i) { return i == Interpolation::kLogLog ? "log-log" : "linear"; }

const char* doubt_name(DoubtKind kind) {
  switch (kind) {
    case DoubtKind::kDrafterScaling: return "drafter scaling";
    case DoubtKind::kBandwidth: return "experts scaled by bandwidth";
    case DoubtKind::kRanks: return "experts divided by ranks";
    case DoubtKind::kInterpolation: return "interpolation";
    case DoubtKind::kDraftedRatio: return "drafted rest taken over from a B300";
    case DoubtKind::kStreams: return "rest beyond the measured numbers of streams";
  }
  return "";
}

const char* doubt_key(DoubtKind kind) {
  switch (kind) {
    case DoubtKind::kDrafterScaling: return "drafter_scaling";
    case DoubtKind::kBandwidth: return "bandwidth";
    case DoubtKind::kRanks: return "ranks";
    case DoubtKind::kInterpolation: return "interpolation";
    case DoubtKind::kDraftedRatio: return "drafted_ratio";
    case DoubtKind::kStreams: return "streams";
  }
  return "";
}

double layers_scale(const CostModel& m) {
  return m.layers * (m.curve_ranks() / m.target.tp) * (m.curve.bandwidth_tbps / m.target.bandwidth_tbps);
}

std::string count(int64_t n, const char* what) { return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s"); }

void state_rest(const EstimateReport& r, std::vector<Statement>& out) {
  const CostModel& m = r.model;
  for (const ServicePoint& p : m.plain) {
    const double rest = plain_rest_ms(m, p.streams);
    out.push_back(
        {"measured", fmt::format("plain, {}: {:g} tokens/s ({}), a step of {:.2f} ms, {:.2f} ms of it experts "
                                 "by the curve: rest {:.2f} ms",
                                 count(p.streams, "stream"), p.tokens_per_second, r.services, p.step_ms(),
                                 p.step_ms() - rest, rest)});
  }
  if (m.plain_rest_ms) out.push_back({"given", fmt::format("rest of a plain step: {:g} ms", *m.plain_rest_ms)});
  if (m.drafted) {
    const double rest = plain_rest_ms(m, m.drafted->streams) * drafted_ratio(m), step = m.drafted->step_ms();
    out.push_back(
        {"measured", fmt::format("block {}, budget {}, {}: {:g} tokens/s at accepted length {:g} ({}), a step "
                                 "of {:.2f} ms, {:.2f} ms of it experts: rest {:.2f} ms, {:.3f} x plain",
                                 m.drafted->block, m.drafted->budget, count(m.drafted->streams, "stream"),
                                 m.drafted->tokens_per_second, m.drafted->accepted, r.services, step, step - rest, rest,
                                 drafted_ratio(m))});
  } else {
    out.push_back({m.ratio_is_borrowed ? "assumed" : "given",
                   fmt::format("a drafted step's rest is {:.3f} x a plain one's at block {}{}", drafted_ratio(m),
                               m.drafted_block(), m.ratio_is_borrowed ? ", as measured on a B300" : "")});
  }
  if (!m.plain.empty()) {
    out.push_back({"assumed",
                   "the plain points are plain decoding, one row a stream, with experts as fast as the curve; "
                   "what they spend more counts as rest"});
    out.push_back({"assumed", "the rest is that of these services, not yet this engine's own"});
  }
}

std::vector<Statement> statements(const EstimateReport& r) {
  const CostModel& m = r.model;
  std::vector<Statement> out;
  out.push_back(
      {"measured", fmt::format("expert layer on {} ({:.3g} TB/s): {}; {} to {} rows, {} between points",
                               m.curve.machine, m.curve.bandwidth_tbps, m.curve.source, m.curve.points.front().rows,
                               m.curve.points.back().rows, interpolation_name(m.interpolation))});
  state_rest(r, out);
  if (m.target.bandwidth_tbps != m.curve.bandwidth_tbps)
    out.push_back(
        {"scaled", fmt::format("expert time by bandwidth, {:.3g} / {:.3g} TB/s: as if the kernel used the same "
                               "share of either",
                               m.curve.bandwidth_tbps, m.target.bandwidth_tbps)});
  if (m.curve_ranks() != m.target.tp)
    out.push_back({"scaled", fmt::format("expert time by ranks, {:g} / {}: as if a share of a layer took its share of "
                                         "the time",
                                         m.curve_ranks(), m.target.tp)});
  out.push_back({"assumed", fmt::format("the drafted rest grows {:g} x for each doubling of the block from {} "
                                        "(drafter scaling)",
                                        m.drafter_scaling, m.drafted_block())});
  out.push_back(
      {"assumed", fmt::format("the rest depends on streams{} and block, not on budget, context or GPU",
                              m.plain.size() > 1 ? " (linear between points)" : " (not known here: constant)")});
  out.push_back(
      {"assumed", "accepted lengths: inputs, not predictions; they belong to a drafter, its block and the text"});
  out.push_back({"assumed",
                 "rows route uniformly and on their own; rows of one text share experts, so real steps read "
                 "fewer"});
  return out;
}

// Tokens a second of as many streams without drafts: what was measured, where it was.
double plain_speed(const CostModel& m, int32_t streams) {
  return step_cost(m, {.streams = streams}).tokens_per_second(streams, 1);
}

void print_curve(Out out, const CostCurve& c) {
  fmt::format_to(out, "\nexpert layer as measured, and its use of {:.3g} TB/s by distinct experts ({} routed{})\n",
                 c.bandwidth_tbps, c.points.front().active_experts ? "recorded" : "expected",
                 c.shape.shared > 0 ? fmt::format(", {} shared", c.shape.shared) : "");
  fmt::format_to(out, "{:>6} {:>9} {:>9} {:>15} {:>13}\n", "rows", "ms", "experts", "without scales", "with scales");
  for (const CurvePoint& p : c.points)
    fmt::format_to(out, "{:>6} {:>9.4f} {:>9.1f} {:>13.1f} % {:>11.1f} %\n", p.rows, p.layer_ms,
                   p.active_experts.value_or(expected_experts(c.shape, p.rows)) + c.shape.shared,
                   100 * bandwidth_use(c, p, false), 100 * bandwidth_use(c, p, true));
}

void print_line(Out out, const CostModel& m, const EstimateLine& line) {
  const StepQuery& q = line.query;
  const StepCost cost = step_cost(m, q);
  const double doubt = total_doubt(doubts(m, q));
  const double plain = plain_speed(m, q.streams);
  std::string head = fmt::format("{:>7} {:>6} {:>6} {:>5} {:>5} {:>10.2f} {:>8.2f} {:>8.2f} {:>7.0f} / {:<3.0f}",
                                 q.streams, q.block > 0 ? std::to_string(q.block) : "plain", q.budget,
                                 fmt::format("{:g}", q.rest_factor), q.rows(), cost.experts_ms, cost.rest_ms,
                                 cost.step_ms(), 100 * cost.experts_share(), 100 - 100 * cost.experts_share());
  for (const double accepted : line.accepted) {
    const double speed = cost.tokens_per_second(q.streams, accepted);
    fmt::format_to(out, "{} {:>8.4g} {:>9.0f} {:>9.1f} ", head, accepted, speed, speed / q.streams);
    if (line.measured) {
      fmt::format_to(out, "{:>13}", "measured");
    } else {
      fmt::format_to(out, "{:>13}",
                     fmt::format("{:.0f} - {:.0f}", speed * std::max(0.0, 1 - doubt), speed * (1 + doubt)));
    }
    fmt::format_to(out, " {:>7.2f}\n", speed / plain);
    head.assign(head.size(), ' ');
  }
}

// Of the last step that has the first factor on its rest.
void print_doubts(Out out, const EstimateReport& r) {
  const double factor = r.lines[1].query.rest_factor;
  const auto line =
      std::find_if(r.lines.rbegin(), r.lines.rend(), [&](const auto& l) { return l.query.rest_factor == factor; });
  const StepQuery& q = line->query;
  const auto shares = doubts(r.model, q);
  fmt::format_to(out, "\nuncertainty of block {}, budget {}, rest x {:g}, {}: +-{:.0f} %, from\n", q.block, q.budget,
                 q.rest_factor, count(q.streams, "stream"), 100 * total_doubt(shares));
  for (const DoubtShare& s : shares) fmt::format_to(out, "  {:>5.1f} %  {}\n", 100 * s.relative, doubt_name(s.kind));
}

struct Plateau {
  int32_t rows;
  bool covered;  // by the curve, with a row to spare
  double layer_ms = 0, first_row_ms = 0, next_row_ms = 0, growth = 0;
};

Plateau find_plateau(const CostModel& m) {
  const auto& points = m.curve.points;
  const int32_t first = points.front().rows, last = points.back().rows;
  Plateau p{plateau_rows(m.curve.shape), false};
  p.covered = p.rows >= first && p.rows < last;
  if (!p.covered) return p;
  const auto at = [&](int32_t rows) { return layer_ms(m.curve, rows, m.interpolation); };
  p.layer_ms = at(p.rows);
  p.first_row_ms = (at(first + 1) - at(first)) * layers_scale(m);
  p.next_row_ms = (at(p.rows + 1) - at(p.rows)) * layers_scale(m);
  p.growth = points.back().layer_ms / p.layer_ms - 1;
  return p;
}

// Nodes a stream needs to draft; none where even a full tree is too small.
std::optional<int64_t> budget_for(const Plateau& p, int64_t streams) {
  const int64_t budget = std::max<int64_t>(ceil_div(p.rows, streams) - 1, 0);
  return budget <= kMostBudget ? std::optional(budget) : std::nullopt;
}

void print_plateau(Out out, const EstimateReport& r) {
  const CostModel& m = r.model;
  const Plateau p = find_plateau(m);
  fmt::format_to(out, "\nplateau: {} rows, from which on {:.0f} % of the experts are read whatever is added\n", p.rows,
                 100 * kPlateauShare);
  if (p.covered) {
    fmt::format_to(out, "  another row costs {:.3f} ms a step at first and {:.3f} ms there", p.first_row_ms,
                   p.next_row_ms);
    fmt::format_to(out, "; up to {} rows the layer takes {:.0f} % longer\n", m.curve.points.back().rows,
                   100 * p.growth);
  } else {
    fmt::format_to(out, "  the curve, {} to {} rows, does not reach across it\n", m.curve.points.front().rows,
                   m.curve.points.back().rows);
  }
  fmt::format_to(out, "  streams -> budget: ");
  for (size_t i = 0; i < r.streams.size(); ++i) {
    const auto budget = budget_for(p, r.streams[i]);
    fmt::format_to(out, "{}{} -> {}", i ? ", " : "", r.streams[i], budget ? std::to_string(*budget) : "never");
  }
  fmt::format_to(out, "\n  budget -> streams: ");
  for (size_t i = 0; i < r.budgets.size(); ++i)
    fmt::format_to(out, "{}{} -> {}", i ? ", " : "", r.budgets[i], ceil_div(p.rows, 1 + r.budgets[i]));
  fmt::format_to(out, "\n");
}

void write_step(JsonWriter& out, const CostModel& m, const EstimateLine& line) {
  const StepQuery& q = line.query;
  const StepCost cost = step_cost(m, q);
  const auto shares = doubts(m, q);
  const double doubt = line.measured ? 0 : total_doubt(shares);
  const double plain = plain_speed(m, q.streams);
  out.begin_object().member("streams", q.streams).member("block", q.block).member("budget", q.budget);
  out.member("rest_factor", q.rest_factor).member("rows", q.rows()).member("measured", line.measured);
  out.member("experts_ms", cost.experts_ms).member("rest_ms", cost.rest_ms).member("step_ms", cost.step_ms());
  out.member("experts_share", cost.experts_share()).member("rest_share", 1 - cost.experts_share());
  out.member("uncertainty", doubt).key("uncertainty_parts").begin_object();
  if (!line.measured)
    for (const DoubtShare& s : shares) out.member(doubt_key(s.kind), s.relative);
  out.end_object().key("speeds").begin_array();
  for (const double accepted : line.accepted) {
    const double speed = cost.tokens_per_second(q.streams, accepted);
    out.begin_object().member("accepted", accepted).member("tokens_per_second", speed);
    out.member("per_stream", speed / q.streams).member("low", speed * std::max(0.0, 1 - doubt));
    out.member("high", speed * (1 + doubt)).member("of_plain", speed / plain).end_object();
  }
  out.end_array().end_object();
}

void write_curve(JsonWriter& out, const CostCurve& c) {
  out.begin_object().member("machine", c.machine).member("source", c.source);
  out.member("bandwidth_tbps", c.bandwidth_tbps).key("shape").begin_object();
  out.member("experts", c.shape.experts).member("hidden", c.shape.hidden).member("inter", c.shape.inter);
  out.member("top_k", c.shape.top_k).member("shared_experts", c.shape.shared).end_object().key("points").begin_array();
  for (const CurvePoint& p : c.points) {
    out.begin_object().member("rows", p.rows).member("layer_ms", p.layer_ms);
    out.member("active_experts", p.active_experts.value_or(expected_experts(c.shape, p.rows)));
    out.member("bandwidth_use", bandwidth_use(c, p, true));
    out.member("bandwidth_use_without_scales", bandwidth_use(c, p, false)).end_object();
  }
  out.end_array().end_object();
}

void write_plateau(JsonWriter& out, const EstimateReport& r) {
  const Plateau p = find_plateau(r.model);
  out.begin_object().member("rows", p.rows).member("covered_by_curve", p.covered);
  if (p.covered)
    out.member("first_row_ms", p.first_row_ms).member("next_row_ms", p.next_row_ms).member("growth_to_end", p.growth);
  out.key("budget_for_streams").begin_array();
  for (const int32_t streams : r.streams) {
    const auto budget = budget_for(p, streams);
    out.begin_object().member("streams", streams).key("budget");
    budget ? out.value(*budget) : out.null();
    out.end_object();
  }
  out.end_array().key("streams_for_budget").begin_array();
  for (const int32_t budget : r.budgets)
    out.begin_object().member("budget", budget).member("streams", ceil_div(p.rows, 1 + budget)).end_object();
  out.end_array().end_object();
}

}  // namespace

std::string to_text(const EstimateReport& r) {
  const CostModel& m = r.model;
  std::string text;
  const Out out = std::back_inserter(text);
  fmt::format_to(out, "{} x {} at {:.3g} TB/s: {} expert layers of width {} over {}\n\n", m.target.tp, r.machine,
                 m.target.bandwidth_tbps, m.layers, m.inter, count(m.target.tp, "rank"));
  for (const Statement& s : statements(r)) fmt::format_to(out, "{:<9} {}\n", s.kind, s.text);
  print_curve(out, m.curve);
  fmt::format_to(out, "\n{:>7} {:>6} {:>6} {:>5} {:>5} {:>10} {:>8} {:>8} {:>13} {:>8} {:>9} {:>9} {:>13} {:>8}\n",
                 "streams", "block", "budget", "rest*", "rows", "experts ms", "rest ms", "step ms", "exp. / rest %",
                 "accepted", "tokens/s", "a stream", "range", "x plain");
  for (const EstimateLine& line : r.lines) print_line(out, m, line);
  fmt::format_to(
      out, "rest*: factor on the rest. tokens/s of all streams; x plain: against as many streams that do not draft.\n");
  print_doubts(out, r);
  print_plateau(out, r);
  return text;
}

std::string to_json(const EstimateReport& r) {
  const CostModel& m = r.model;
  JsonWriter out(2);
  out.begin_object().member("machine", r.machine).member("bandwidth_tbps", m.target.bandwidth_tbps);
  out.member("tp", m.target.tp).member("layers", m.layers).member("inter", m.inter);
  out.member("interpolation", interpolation_name(m.interpolation));
  out.member("drafter_scaling", m.drafter_scaling).member("drafted_ratio", drafted_ratio(m));
  out.key("statements").begin_array();
  for (const Statement& s : statements(r))
    out.begin_object().member("kind", s.kind).member("text", s.text).end_object();
  out.end_array().key("curve");
  write_curve(out, m.curve);
  out.key("steps").begin_array();
  for (const EstimateLine& line : r.lines) write_step(out, m, line);
  out.end_array().key("plateau");
  write_plateau(out, r);
  out.end_object();
  return std::move(out).text() + "\n";
}

}  // namespace ddtree
