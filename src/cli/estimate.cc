// ddtree estimate: how fast a step would be on given hardware, from measured curves, before anybody buys it.

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <memory>

#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/estimate_curves.h"
#include "cli/estimate_report.h"
#include "cli/prompt_file.h"
#include "cli/session.h"

namespace ddtree {
namespace {

constexpr int32_t kMostBlock = 17;  // the anchor and the 16 slots that a drafter may fill
constexpr size_t kMostValues = 64;

struct EstimateFlags {
  std::string preset, curve, interpolation = "log-log";
  std::optional<double> bandwidth, drafted_ratio;
  std::optional<int32_t> tp, budget, block;
  int32_t layers = 60, inter = 2048;
  std::vector<int32_t> streams;
  std::vector<double> accepted, rest_ms, rest_factor = {1, 0.6};
  std::vector<std::string> baseline;
  std::string drafted_baseline;
  double drafter_scaling = kDrafterScaling;
  bool sustained = false, json = false;
};

Error bad(std::string message) { return Error{Code::kInvalidArgument, std::move(message)}; }

Status check_draft(int32_t block, int32_t budget) {
  if (budget < 1 || budget > kMostBudget)
    return bad(fmt::format("--budget {}: give 1 to {} drafted nodes; plain decoding is estimated in any case", budget,
                           kMostBudget));
  if (block < 2 || block > kMostBlock)
    return bad(fmt::format("--block {}: give 2 to {}, the last token and up to 16 drafted ones", block, kMostBlock));
  return {};
}

double most_accepted(int32_t block, int32_t budget) { return std::min(block, budget + 1); }

Status check_accepted(int32_t block, int32_t budget, double accepted) {
  const double most = most_accepted(block, budget);
  if (accepted >= 1 && accepted <= most) return {};  // NaN is neither
  return bad(fmt::format("--accepted {:g}: a pass commits 1 to {:g} tokens with block {} and budget {}", accepted, most,
                         block, budget));
}

Result<Interpolation> interpolation_from(const std::string& name) {
  if (name == "log-log") return Interpolation::kLogLog;
  if (name == "linear") return Interpolation::kLinear;
  return bad("--interpolation " + name + ": give log-log or linear");
}

// Numbers between colons; all but the last `reals` of them are whole.
Result<std::vector<double>> colon_list(const char* option, const std::string& text, size_t count, size_t reals,
                                       const char* form) {
  std::vector<double> out;
  const char *at = text.data(), *end = at + text.size();
  while (out.size() < count) {
    int32_t whole = 0;
    double real = 0;
    const bool is_real = out.size() + reals >= count;
    const auto read = is_real ? std::from_chars(at, end, real) : std::from_chars(at, end, whole);
    const bool last = out.size() + 1 == count;
    if (read.ec != std::errc() || (last ? read.ptr != end : read.ptr == end || *read.ptr != ':'))
      return bad(fmt::format("{} {}: give {}", option, text, form));
    out.push_back(is_real ? real : whole);
    at = read.ptr + 1;
  }
  return out;
}

Result<ServicePoint> plain_point(const std::string& text) {
  TRY_ASSIGN(const auto v, colon_list("--baseline", text, 2, 1, "STREAMS:TOKENS_PER_SECOND, as in 1:138,10:517"));
  return ServicePoint{.streams = static_cast<int32_t>(v[0]), .tokens_per_second = v[1]};
}

Result<ServicePoint> drafted_point(const std::string& text) {
  TRY_ASSIGN(const auto v, colon_list("--drafted-baseline", text, 5, 2,
                                      "STREAMS:BLOCK:BUDGET:ACCEPTED:TOKENS_PER_SECOND, as in 1:8:8:4.4:303"));
  const int32_t block = static_cast<int32_t>(v[1]), budget = static_cast<int32_t>(v[2]);
  TRY(check_draft(block, budget));
  TRY(check_accepted(block, budget, v[3]));
  return ServicePoint{static_cast<int32_t>(v[0]), budget, block, v[3], v[4]};
}

// The rest of a drafted step as a multiple of plain: given, or whatever was known before the plain rest is replaced.
Status override_ratio(const EstimateFlags& flags, CostModel& m) {
  if (flags.drafted_ratio || flags.rest_ms.size() == 2) {
    m.drafted_ratio = flags.drafted_ratio ? *flags.drafted_ratio : flags.rest_ms[1] / flags.rest_ms[0];
    m.ratio_is_borrowed = false;
  } else if (m.drafted) {
    TRY(check_model(m));
    m.drafted_ratio = drafted_ratio(m);
  }
  m.drafted.reset();
  return {};
}

Status override_plain(const EstimateFlags& flags, CostModel& m) {
  if (!flags.rest_ms.empty()) {
    m.plain_rest_ms = flags.rest_ms[0];
    m.plain.clear();
  }
  if (flags.baseline.empty()) return {};
  m.plain.clear();
  m.measured = m.target;
  for (const std::string& text : flags.baseline) {
    TRY_ASSIGN(const ServicePoint point, plain_point(text));
    m.plain.push_back(point);
  }
  if (flags.drafted_baseline.empty()) return {};
  TRY_ASSIGN(m.drafted, drafted_point(flags.drafted_baseline));
  m.drafted_ratio.reset();
  m.ratio_is_borrowed = false;
  return {};
}

// The rest of a step, if the user knows better than the preset.
Status override_rest(const EstimateFlags& flags, CostModel& m) {
  const bool drafted = !flags.drafted_baseline.empty();
  if (flags.rest_ms.size() > 2) return bad("--rest-ms: give PLAIN or PLAIN,DRAFTED");
  for (const double ms : flags.rest_ms)
    if (!(ms > 0) || !(ms <= 1e6)) return bad(fmt::format("--rest-ms {}: give milliseconds, up to 1e6", ms));
  if (!flags.rest_ms.empty() && !flags.baseline.empty()) return bad("--rest-ms and --baseline: give one of them");
  if (flags.rest_ms.size() == 2 && flags.drafted_ratio)
    return bad("--rest-ms PLAIN,DRAFTED and --drafted-ratio: give one of them");
  if (drafted && flags.baseline.empty()) return bad("--drafted-baseline: give the plain --baseline too");
  if (drafted && flags.drafted_ratio) return bad("--drafted-baseline and --drafted-ratio: give one of them");
  if (flags.rest_ms.empty() && flags.baseline.empty() && !flags.drafted_ratio) return {};
  TRY(override_ratio(flags, m));
  return override_plain(flags, m);
}

Result<EstimateReport> make_model(const EstimateFlags& flags) {
  EstimateReport report;
  CostModel& m = report.model;
  TRY_ASSIGN(m.interpolation, interpolation_from(flags.interpolation));
  const CurveTimes times = flags.sustained ? CurveTimes::kSustained : CurveTimes::kBurst;
  m.layers = flags.layers;
  m.inter = flags.inter;
  m.drafter_scaling = flags.drafter_scaling;
  m.drafted_ratio = kDraftedRatio;
  m.ratio_is_borrowed = true;
  if (flags.curve.empty() && flags.preset.empty())
    return bad(fmt::format("estimate: give --preset {}, or --curve FILE.json", kPresetNames));
  if (!flags.preset.empty()) {
    // With a curve of the user's own, the preset's column of times does not matter.
    TRY_ASSIGN(const Preset preset, find_preset(flags.preset, flags.curve.empty() ? times : CurveTimes::kBurst));
    report.machine = preset.machine;
    report.services = preset.services;
    report.streams = preset.streams;
    m.target = m.measured = preset.gpus;
    m.plain = preset.plain;
    m.drafted = preset.drafted;
    if (m.drafted) m.drafted_ratio.reset();
    m.ratio_is_borrowed = !m.drafted;
    m.curve = curve_for(preset.curves, m.inter, flags.tp.value_or(m.target.tp));
  }
  if (!flags.curve.empty()) {
    TRY_ASSIGN(const std::string text, read_file(flags.curve));
    TRY_ASSIGN(m.curve, parse_curve(text, flags.curve, times));
    if (flags.preset.empty()) {
      report.machine = m.curve.machine;
      m.target.tp = m.curve.shape.inter > 0 ? std::max(1, m.inter / m.curve.shape.inter) : 1;
      m.target.bandwidth_tbps = m.curve.bandwidth_tbps;
    }
  }
  if (flags.bandwidth) m.target.bandwidth_tbps = *flags.bandwidth;
  if (flags.tp) m.target.tp = *flags.tp;
  TRY(override_rest(flags, m));
  if (!flags.baseline.empty()) report.services = "given";
  TRY(check_model(m));
  return report;
}

struct Scenario {
  int32_t budget, block;
  std::vector<double> accepted;
};

Result<std::vector<Scenario>> scenarios(const EstimateFlags& flags) {
  if (!flags.budget && !flags.block && flags.accepted.empty())
    return std::vector<Scenario>{{8, 8, {4.4}}, {32, 16, {12, 14, 16}}};
  const int32_t block = flags.block.value_or(16);
  Scenario s{flags.budget.value_or(block <= 8 ? 8 : 32), block, flags.accepted};
  TRY(check_draft(s.block, s.budget));
  const double most = most_accepted(s.block, s.budget);
  if (s.accepted.empty())
    for (const double accepted : {4.4, 12.0, 14.0, 16.0})
      if (accepted <= most) s.accepted.push_back(accepted);
  if (s.accepted.empty())
    return bad(fmt::format("--accepted: give the tokens that a pass commits, 1 to {:g} here", most));
  for (const double accepted : s.accepted) TRY(check_accepted(s.block, s.budget, accepted));
  return std::vector<Scenario>{s};
}

bool same_step(const StepQuery& q, const ServicePoint& p) {
  return q.streams == p.streams && q.budget == p.budget && q.block == p.block && q.rest_factor == 1;
}

Status add_lines(const EstimateFlags& flags, EstimateReport& report) {
  const CostModel& m = report.model;
  TRY_ASSIGN(const std::vector<Scenario> drafted, scenarios(flags));
  const bool as_measured = m.target.tp == m.measured.tp && m.target.bandwidth_tbps == m.measured.bandwidth_tbps;
  std::vector<int32_t> streams = flags.streams.empty() ? report.streams : flags.streams;
  if (streams.empty()) streams = {1};
  if (flags.streams.empty())  // of a preset's, those that this budget has room for, but at least the first
    while (streams.size() > 1 && !check_query(m, {streams.back(), drafted.back().budget, 0, 1}).ok())
      streams.pop_back();
  const auto add = [&](const StepQuery& q, const std::vector<double>& accepted) -> Status {
    TRY(check_query(m, q));
    const bool plain = std::any_of(m.plain.begin(), m.plain.end(), [&](const auto& p) { return same_step(q, p); });
    const bool tree = m.drafted && same_step(q, *m.drafted) && accepted == std::vector{m.drafted->accepted};
    report.lines.push_back({q, accepted, as_measured && (plain || tree)});
    return {};
  };
  for (const int32_t n : streams) {
    TRY(add({n, 0, 0, 1}, {1}));
    for (const Scenario& s : drafted)
      for (const double factor : flags.rest_factor) TRY(add({n, s.budget, s.block, factor}, s.accepted));
  }
  report.streams = {1, 2, 4, 8, 10, 16, 32, 64};
  report.budgets = {8, 16, 32, 64, 128, 255};
  for (const int32_t n : streams) report.streams.push_back(n);
  for (const Scenario& s : drafted) report.budgets.push_back(s.budget);
  for (std::vector<int32_t>* list : {&report.streams, &report.budgets}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  return {};
}

Status print_estimate(const EstimateFlags& flags) {
  for (const size_t n : {flags.streams.size(), flags.accepted.size(), flags.rest_factor.size(), flags.baseline.size()})
    if (n > kMostValues) return bad(fmt::format("estimate: {} values of one option; give {} at most", n, kMostValues));
  TRY_ASSIGN(EstimateReport report, make_model(flags));
  TRY(add_lines(flags, report));
  fmt::print("{}", flags.json ? to_json(report) : to_text(report));
  return {};
}

}  // namespace

void add_estimate(CLI::App& parent, int& exit_code) {
  auto f = std::make_shared<EstimateFlags>();
  CLI::App* app =
      parent.add_subcommand("estimate", "Predict speed on given GPUs from a measured curve of the expert layers");
  app->add_option("--preset", f->preset, fmt::format("Machine to start from: {}", kPresetNames));
  app->add_option("--curve", f->curve, "Expert layer's times: a curve file, or op_bench's JSON of the experts verb");
  app->add_flag("--sustained", f->sustained, "Read the curve's times at the clock that the power limit leaves");
  app->add_option("--interpolation", f->interpolation, "Between the curve's points: log-log or linear")
      ->capture_default_str();
  app->add_option("--bandwidth", f->bandwidth, "TB/s of a GPU; default: the preset's, else the curve's");
  app->add_option("--tp", f->tp, "Ranks that share the weights; default: 8 in a preset, else the curve's");
  app->add_option("--layers", f->layers, "Layers with experts")->capture_default_str();
  app->add_option("--inter", f->inter, "Width of an expert, over all ranks")->capture_default_str();
  app->add_option("--streams", f->streams, "Numbers of streams at once; default: 1, or what the preset measured")
      ->delimiter(',');
  app->add_option("--budget", f->budget, "Drafted nodes of a stream, 1 to 255; default: 8 up to block 8, else 32");
  app->add_option("--block", f->block, "Tokens of a drafter's block with the one it starts from, 2 to 17");
  app->add_option("--accepted", f->accepted, "Tokens that a pass commits in a stream")->delimiter(',');
  app->add_option("--rest-ms", f->rest_ms,
                  "Everything of a step but its experts: PLAIN, or PLAIN,DRAFTED at block 8; replaces the preset's")
      ->delimiter(',');
  app->add_option("--baseline", f->baseline,
                  "Plain decoding as measured on these GPUs, to get that rest from: STREAMS:TOKENS_PER_SECOND")
      ->delimiter(',');
  app->add_option("--drafted-baseline", f->drafted_baseline,
                  "Drafted decoding as measured there: STREAMS:BLOCK:BUDGET:ACCEPTED:TOKENS_PER_SECOND");
  app->add_option("--drafted-ratio", f->drafted_ratio, "Rest of a drafted step at block 8, as a multiple of plain");
  app->add_option("--drafter-scaling", f->drafter_scaling, "Growth of the drafted rest when the block doubles")
      ->capture_default_str();
  app->add_option("--rest-factor", f->rest_factor, "Factors on the rest of drafted steps: what if it were shorter")
      ->delimiter(',')
      ->capture_default_str();
  app->add_flag("--json", f->json, "One JSON object");
  app->callback([f, &exit_code] {
    const Status status = print_estimate(*f);
    exit_code = status.ok() ? 0 : report(status.error());
  });
}

}  // namespace ddtree
