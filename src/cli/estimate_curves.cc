#include "cli/estimate_curves.h"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/core.h>

#include "base/json.h"

namespace ddtree {
namespace {

constexpr size_t kMostCurveBytes = size_t{4} << 20;

struct H200Row {
  int32_t rows;
  double active_experts, burst_us, sustained_us;
};

// bench/results/h200/experts-kimi-k2.6.json
constexpr H200Row kH200Whole[] = {
    {1, 8.0, 55.3, 56.2},          {2, 15.8, 97.3, 102.7},       {4, 31.2, 179.9, 198.2},
    {9, 66.7, 373.3, 414.9},       {17, 115.8, 639.5, 720.1},    {33, 193.2, 1062.2, 1204.4},
    {64, 288.0, 1580.5, 1799.7},   {90, 328.2, 1806.5, 2080.3},  {128, 361.2, 2002.0, 2304.2},
    {192, 377.0, 2118.8, 2389.2},  {256, 382.0, 2160.6, 2472.4}, {384, 383.8, 2291.0, 2680.6},
    {512, 384.0, 2517.2, 2953.1},  {768, 384.0, 2745.3, 3225.5}, {1024, 384.0, 3035.2, 3554.9},
    {1088, 384.0, 3133.0, 3645.8},
};
// bench/results/h200/experts-kimi-k2.6-tp8.json
constexpr H200Row kH200Rank[] = {
    {1, 8.0, 16.9, 16.9},       {2, 15.8, 22.4, 22.4},      {4, 31.3, 35.0, 35.0},       {9, 66.7, 58.4, 58.8},
    {17, 116.4, 93.2, 96.8},    {33, 194.1, 151.2, 160.1},  {64, 288.2, 219.2, 235.7},   {90, 328.6, 248.3, 272.8},
    {128, 359.4, 273.6, 300.2}, {192, 375.9, 293.0, 319.4}, {256, 381.6, 302.2, 332.5},  {384, 383.7, 326.6, 365.3},
    {512, 384.0, 364.7, 406.3}, {768, 384.0, 412.8, 461.3}, {1024, 384.0, 470.6, 519.5}, {1088, 384.0, 485.9, 537.0},
};

constexpr ExpertShape kKimi = {.experts = 384, .hidden = 7168, .inter = 2048, .top_k = 8};
constexpr double kH200Tbps = 4.8, kRtxTbps = 1.8, kB300Tbps = 8;  // of the data sheets

CostCurve h200_curve(std::span<const H200Row> rows, int32_t inter, std::string_view what, CurveTimes times) {
  const bool burst = times == CurveTimes::kBurst;
  CostCurve curve{
      "H200", fmt::format("this project's kernel, {}, {}", what, burst ? "burst" : "sustained"), kH200Tbps, kKimi, {}};
  curve.shape.inter = inter;
  for (const H200Row& r : rows)
    curve.points.push_back({r.rows, (burst ? r.burst_us : r.sustained_us) / 1000, r.active_experts});
  return curve;
}

CostCurve rtx_curve() {
  CostCurve curve{"RTX PRO 6000", "the whole layer on one GPU", kRtxTbps, kKimi, {}};
  curve.shape.shared = 1;
  curve.points = {{1, 0.151, {}},  {9, 1.18, {}},   {32, 3.171, {}}, {90, 5.19, {}},
                  {256, 7.02, {}}, {512, 7.01, {}}, {1024, 7.02, {}}};
  return curve;
}

// Text that is printed as it is: one short line.
Result<std::string> read_line(const JsonValue& root, std::string_view key) {
  constexpr size_t kMostBytes = 200;
  TRY_ASSIGN(const std::string_view text, root.get_string(key));
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; };
  if (text.empty() || text.size() > kMostBytes || std::any_of(text.begin(), text.end(), control))
    return root.get(key)->error(Code::kInvalidArgument,
                                fmt::format("give 1 to {} bytes without control characters", kMostBytes));
  return std::string(text);
}

// op_bench writes one flat object for the experts of one GPU, times in microseconds.
Result<CostCurve> from_op_bench(const JsonValue& root, CurveTimes times) {
  TRY_ASSIGN(const std::string_view verb, root.get_string("verb"));
  if (verb != "experts")
    return root.get("verb")->error(Code::kInvalidArgument, "give op_bench's results of the verb \"experts\"");
  CostCurve curve;
  TRY_ASSIGN(curve.machine, read_line(root, "device"));
  TRY_ASSIGN(const double ceiling, root.get_double("read_ceiling_gbps"));
  curve.source = times == CurveTimes::kBurst ? "op_bench, burst" : "op_bench, sustained";
  curve.bandwidth_tbps = ceiling / 1000;
  return curve;
}

Result<CostCurve> from_curve_file(const JsonValue& root, CurveTimes times) {
  CostCurve curve;
  TRY_ASSIGN(curve.machine, read_line(root, "machine"));
  curve.source = "a curve file";
  if (root.find("source")) {
    TRY_ASSIGN(curve.source, read_line(root, "source"));
  }
  TRY_ASSIGN(curve.bandwidth_tbps, root.get_double("bandwidth_tbps"));
  if (times == CurveTimes::kSustained) curve.source += ", sustained";
  return curve;
}

Result<ExpertShape> read_shape(const JsonValue& v) {
  ExpertShape shape;
  for (auto [key, field] : {std::pair{"experts", &ExpertShape::experts}, std::pair{"hidden", &ExpertShape::hidden},
                            std::pair{"inter", &ExpertShape::inter}, std::pair{"top_k", &ExpertShape::top_k}}) {
    TRY_ASSIGN(const int64_t value, v.get_int(key, 1, INT32_MAX));
    shape.*field = static_cast<int32_t>(value);
  }
  TRY_ASSIGN(const auto shared, v.find_int("shared_experts", 0, INT32_MAX));
  shape.shared = static_cast<int32_t>(shared.value_or(0));
  return shape;
}

}  // namespace

Result<Preset> find_preset(std::string_view name, CurveTimes times) {
  const bool sustained = times == CurveTimes::kSustained;
  if (name == "h200") {
    return Preset{.name = "h200",
                  .machine = "H200",
                  .gpus = {kH200Tbps, 8},
                  .curves = {h200_curve(kH200Whole, 2048, "the whole layer on one GPU", times),
                             h200_curve(kH200Rank, 256, "one rank of 8", times)},
                  .plain = {{.tokens_per_second = 106}},
                  .drafted = {},
                  .services = "publicly reported for another engine, SGLang 0.5.6 with K2.5 INT4, TP 8",
                  .streams = {1}};
  }
  if (name != "b300" && name != "rtx-pro-6000")
    return Error{Code::kInvalidArgument, fmt::format("--preset {}: give {}", name, kPresetNames)};
  if (sustained)
    return Error{Code::kInvalidArgument,
                 fmt::format("--sustained: the curve of --preset {} has one set of times; leave it out", name)};
  if (name == "b300")
    return Preset{.name = "b300",
                  .machine = "B300",
                  .gpus = {kB300Tbps, 8},
                  .curves = {rtx_curve()},
                  .plain = {{.tokens_per_second = 133}},
                  .drafted = ServicePoint{1, 8, 8, 4.4, 303},
                  .services = "measured service",
                  .streams = {1}};
  return Preset{.name = "rtx-pro-6000",
                .machine = "RTX PRO 6000",
                .gpus = {kRtxTbps, 8},
                .curves = {rtx_curve()},
                .plain = {{.streams = 1, .tokens_per_second = 138}, {.streams = 10, .tokens_per_second = 517}},
                .drafted = {},
                .services = "measured service",
                .streams = {1, 10}};
}

const CostCurve& curve_for(const std::vector<CostCurve>& curves, int32_t inter, int32_t tp) {
  for (const CostCurve& curve : curves)
    if (int64_t{curve.shape.inter} * tp == inter) return curve;
  return curves.front();
}

Result<CostCurve> parse_curve(std::string_view text, std::string_view name, CurveTimes times) {
  TRY_ASSIGN(const JsonDocument document, parse_json(text, name, {.max_bytes = kMostCurveBytes, .max_depth = 16}));
  const JsonValue root = document.root();
  const bool op_bench = root.find("verb").has_value(), sustained = times == CurveTimes::kSustained;
  TRY_ASSIGN(CostCurve curve, op_bench ? from_op_bench(root, times) : from_curve_file(root, times));
  TRY_ASSIGN(const JsonValue shape, op_bench ? Result<JsonValue>(root) : root.get("shape"));
  TRY_ASSIGN(curve.shape, read_shape(shape));
  const char* column = op_bench ? (sustained ? "sustained_us" : "burst_us") : (sustained ? "sustained_ms" : "layer_ms");
  TRY_ASSIGN(const JsonValue points, root.get("points"));
  TRY_ASSIGN(const JsonElements elements, points.elements());
  for (const JsonValue v : elements) {
    CurvePoint point;
    TRY_ASSIGN(const int64_t rows, v.get_int("rows", 1, INT32_MAX));
    TRY_ASSIGN(const double time, v.get_double(column));
    TRY_ASSIGN(point.active_experts, v.find_double("active_experts"));
    point.rows = static_cast<int32_t>(rows);
    point.layer_ms = op_bench ? time / 1000 : time;
    curve.points.push_back(point);
  }
  TRY(check_curve(curve, name));
  return curve;
}

}  // namespace ddtree
