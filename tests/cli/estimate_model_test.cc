// The arithmetic of `ddtree estimate` against figures that were measured or published elsewhere: an expert layer on an
// RTX PRO 6000, two services on B300s, and the predictions made from them. Each must come out within 3 %.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cli/estimate_curves.h"
#include "cli/step_estimate.h"

namespace ddtree {
namespace {

using testing::HasSubstr;

constexpr double kTolerance = 0.03;

void expect_near(double value, double figure) { EXPECT_NEAR(value, figure, kTolerance * figure); }

CostCurve rtx() {
  CostCurve curve{"RTX PRO 6000", "measured", 1.8, {.experts = 384, .hidden = 7168, .inter = 2048, .top_k = 8}, {}};
  curve.points = {{1, 0.151, {}},  {9, 1.18, {}},   {32, 3.171, {}}, {90, 5.19, {}},
                  {256, 7.02, {}}, {512, 7.01, {}}, {1024, 7.02, {}}};
  return curve;
}

CostModel b300(Interpolation interpolation = Interpolation::kLogLog) {
  CostModel m;
  m.curve = rtx();
  m.interpolation = interpolation;
  m.layers = 60;
  m.inter = 2048;
  m.target = m.measured = {.bandwidth_tbps = 8, .tp = 8};
  m.plain = {{.tokens_per_second = 133}};
  m.drafted = ServicePoint{.streams = 1, .budget = 8, .block = 8, .accepted = 4.4, .tokens_per_second = 303};
  return m;
}

const StepQuery kPlain = {1, 0, 0, 1}, kBlock8 = {1, 8, 8, 1}, kBlock16 = {1, 32, 16, 1},
                kShorterRest = {1, 32, 16, 0.6};

class Figures : public testing::TestWithParam<Interpolation> {
 protected:
  const CostModel model = b300(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Both, Figures, testing::Values(Interpolation::kLogLog, Interpolation::kLinear));

TEST_P(Figures, ExpertTimeOfABlockOf8) { expect_near(step_cost(model, kBlock8).experts_ms, 2.0); }

TEST_P(Figures, ExpertTimeAt33Rows) {
  const double ms = step_cost(model, kBlock16).experts_ms;
  EXPECT_GE(ms, 5.3);
  EXPECT_LE(ms, 5.5);
}

TEST_P(Figures, RestOfPlainDecoding) { expect_near(step_cost(model, kPlain).rest_ms, 7.3); }
TEST_P(Figures, RestOfABlockOf8) { expect_near(step_cost(model, kBlock8).rest_ms, 12.5); }
TEST_P(Figures, RestOfABlockOf16) { expect_near(step_cost(model, kBlock16).rest_ms, 12.5 * 1.25); }

TEST_P(Figures, MeasuredSpeedsComeBack) {
  EXPECT_NEAR(step_cost(model, kPlain).tokens_per_second(1, 1), 133, 1e-9);
  EXPECT_NEAR(step_cost(model, kBlock8).tokens_per_second(1, 4.4), 303, 1e-9);
}

TEST_P(Figures, PredictedStep) { expect_near(step_cost(model, kBlock16).step_ms(), 20.9); }

TEST_P(Figures, PredictedSpeeds) {
  for (const auto& [accepted, figure] : {std::pair{12, 570}, std::pair{14, 670}, std::pair{16, 765}})
    expect_near(step_cost(model, kBlock16).tokens_per_second(1, accepted), figure);
}

TEST_P(Figures, PredictedStepWithAShorterRest) { expect_near(step_cost(model, kShorterRest).step_ms(), 14.7); }

TEST_P(Figures, PredictedSpeedsWithAShorterRest) {
  for (const auto& [accepted, figure] : {std::pair{12, 815}, std::pair{14, 950}, std::pair{16, 1090}})
    expect_near(step_cost(model, kShorterRest).tokens_per_second(1, accepted), figure);
}

TEST_P(Figures, UncertaintyIsThatOfTheDrafter) {
  const auto shares = doubts(model, kBlock16);
  EXPECT_EQ(shares.front().kind, DoubtKind::kDrafterScaling);
  for (const DoubtShare& share : shares) EXPECT_LE(share.relative, shares.front().relative);
  EXPECT_DOUBLE_EQ(shares.front().relative, 0.30);
  EXPECT_NEAR(total_doubt(shares), 0.30, 0.02);
}

// Which bytes the 73 % count: nine experts at one row, all of them from 256 rows on.
TEST(Curve, BandwidthWithoutScales) {
  CostCurve curve = rtx();
  curve.shape.shared = 1;
  expect_near(bandwidth_use(curve, curve.points[0], false), 0.73);
  for (size_t i = 4; i < 7; ++i) expect_near(bandwidth_use(curve, curve.points[i], false), 0.67);
}

TEST(Curve, ScalesAreAnEighthOnTop) {
  const CostCurve curve = rtx();
  for (const CurvePoint& p : curve.points)
    EXPECT_NEAR(bandwidth_use(curve, p, true) / bandwidth_use(curve, p, false), 4.5 / 4, 1e-12);
  EXPECT_EQ(expert_bytes(curve.shape, true), 24772608);  // what op_bench counts
}

// Independent: 384 · (1 − (47/48)^M) as tabulated elsewhere.
TEST(Curve, ExpectedExperts) {
  const ExpertShape shape = rtx().shape;
  for (const auto& [rows, experts] : {std::pair{1, 8.0}, {2, 15.8}, {4, 31.0}, {8, 59.5}, {17, 115.5}, {33, 192.0}})
    EXPECT_NEAR(expected_experts(shape, rows), experts, 0.4) << rows;
  for (const auto& [rows, experts] : {std::pair{65, 286.0}, {128, 358.0}, {256, 382.0}, {1024, 384.0}})
    EXPECT_NEAR(expected_experts(shape, rows), experts, 0.6) << rows;
}

TEST(Curve, PlateauIsTheFirstRowCountPastTheShare) {
  const ExpertShape shape = rtx().shape;
  const int32_t rows = plateau_rows(shape);
  EXPECT_GE(expected_experts(shape, rows), 0.99 * 384);
  EXPECT_LT(expected_experts(shape, rows - 1), 0.99 * 384);
  EXPECT_EQ(plateau_rows({.experts = 8, .hidden = 32, .inter = 32, .top_k = 8}), 1);
}

TEST(Curve, PassesThroughItsPointsAndBetweenThem) {
  const CostCurve curve = rtx();
  for (const Interpolation way : {Interpolation::kLogLog, Interpolation::kLinear})
    for (const CurvePoint& p : curve.points) EXPECT_NEAR(layer_ms(curve, p.rows, way), p.layer_ms, 1e-12);
  EXPECT_NEAR(layer_ms(curve, 61, Interpolation::kLinear), (3.171 + 5.19) / 2, 1e-12);
  EXPECT_NEAR(layer_ms(curve, std::sqrt(32.0 * 90), Interpolation::kLogLog), std::sqrt(3.171 * 5.19), 1e-12);
}

TEST(Curve, RefusesImpossibleNumbers) {
  const auto refusal = [](auto&& change) {
    CostCurve curve = rtx();
    change(curve);
    const Status status = check_curve(curve, "c.json");
    return status.ok() ? std::string("accepted") : status.error().message;
  };
  const double nan = std::nan("");
  EXPECT_EQ(refusal([](CostCurve&) {}), "accepted");
  EXPECT_THAT(refusal([&](CostCurve& c) { c.bandwidth_tbps = nan; }), HasSubstr("bandwidth"));
  EXPECT_THAT(refusal([](CostCurve& c) { c.bandwidth_tbps = 0; }), HasSubstr("bandwidth"));
  EXPECT_THAT(refusal([](CostCurve& c) { c.points.resize(1); }), HasSubstr("1 points"));
  EXPECT_THAT(refusal([](CostCurve& c) { c.points[2].rows = 9; }), HasSubstr("points[2]: rows 9 after 9"));
  EXPECT_THAT(refusal([](CostCurve& c) { c.points[3].layer_ms = -1; }), HasSubstr("points[3]: the layer's time"));
  EXPECT_THAT(refusal([&](CostCurve& c) { c.points[0].layer_ms = INFINITY; }), HasSubstr("points[0]"));
  EXPECT_THAT(refusal([&](CostCurve& c) { c.points[0].layer_ms = nan; }), HasSubstr("points[0]"));
  EXPECT_THAT(refusal([](CostCurve& c) { c.points[0].active_experts = 385; }), HasSubstr("active_experts"));
  EXPECT_THAT(refusal([](CostCurve& c) { c.shape.top_k = 385; }), HasSubstr("top_k"));
  EXPECT_THAT(refusal([](CostCurve& c) { c.shape.inter = 2000; }), HasSubstr("multiples of 32"));
}

// Eight cards of 1.8 TB/s that serve 138 tokens/s to one stream and 517 to ten: a step is 1000/138 and 10000/517 ms.
TEST(Rest, LiesOnTheLineBetweenMeasuredPoints) {
  CostModel m = b300();
  m.target = m.measured = {.bandwidth_tbps = 1.8, .tp = 8};
  m.plain = {{.streams = 1, .tokens_per_second = 138}, {.streams = 10, .tokens_per_second = 517}};
  m.drafted.reset();
  m.drafted_ratio = kDraftedRatio;
  const double one = 1000.0 / 138 - 0.151 * 60 / 8;
  EXPECT_NEAR(plain_rest_ms(m, 1), one, 1e-9);
  EXPECT_NEAR(step_cost(m, {10, 0, 0, 1}).step_ms(), 10000.0 / 517, 1e-9);
  EXPECT_NEAR(plain_rest_ms(m, 4), one + (plain_rest_ms(m, 10) - one) / 3, 1e-9);
  EXPECT_NEAR(step_cost(m, kBlock8).rest_ms, one * 1.725, 1e-9);
  EXPECT_GT(plain_rest_ms(m, 1000), plain_rest_ms(m, 10));
}

TEST(Rest, NeverExtrapolatesToNothing) {
  CostModel m = b300();
  m.drafted.reset();
  m.drafted_ratio = 1;
  m.plain = {{.streams = 1, .tokens_per_second = 20}, {.streams = 2, .tokens_per_second = 500}};
  ASSERT_TRUE(check_model(m).ok());
  EXPECT_GT(plain_rest_ms(m, 1000), 0);
}

// The shipped ratio is that of the two B300 points.
TEST(Rest, BorrowedRatioIsTheB300s) { EXPECT_NEAR(drafted_ratio(b300()), kDraftedRatio, 5e-4); }

TEST(Rest, RefusesAServiceFasterThanItsExperts) {
  CostModel m = b300();
  m.plain[0].tokens_per_second = 5000;
  EXPECT_THAT(check_model(m).error().message, HasSubstr("leaves nothing beside its experts"));
}

TEST(Step, ScalesByBandwidthAndRanks) {
  CostModel m = b300();
  const double before = step_cost(m, kBlock16).experts_ms, rest = step_cost(m, kBlock16).rest_ms;
  m.target = {.bandwidth_tbps = 4, .tp = 16};
  EXPECT_NEAR(step_cost(m, kBlock16).experts_ms, before, 1e-12);
  m.target = {.bandwidth_tbps = 4, .tp = 8};
  EXPECT_NEAR(step_cost(m, kBlock16).experts_ms, 2 * before, 1e-12);
  EXPECT_NEAR(step_cost(m, kBlock16).rest_ms, rest, 1e-12);  // a property of where it was measured
}

TEST(Step, NoDoubtAboutAMeasuredPoint) {
  EXPECT_NEAR(total_doubt(doubts(b300(), kPlain)), 0, 1e-12);
  EXPECT_NEAR(total_doubt(doubts(b300(), kBlock8)), 0, 1e-12);
}

// What a longer expert time adds to 33 rows it takes from the rest of the measured 9, which grows with the block.
TEST(Step, DoubtOfExpertTimeIsWhatDoesNotCancel) {
  const CostModel m = b300(Interpolation::kLinear);
  const double at_9 = 1.18 * 7.5 * 0.225, at_33 = (3.171 + (5.19 - 3.171) / 58) * 7.5 * 0.225;
  const double step = at_33 + 1.25 * (4400.0 / 303 - at_9);
  const auto share = [&](DoubtKind kind) {
    for (const DoubtShare& s : doubts(m, kBlock16))
      if (s.kind == kind) return s.relative;
    return -1.0;
  };
  EXPECT_NEAR(share(DoubtKind::kBandwidth), 0.20 * (at_33 - 1.25 * at_9) / step, 1e-9);
  EXPECT_NEAR(share(DoubtKind::kRanks), 0.25 * (at_33 - 1.25 * at_9) / step, 1e-9);
  const double log_33 = 3.171 * std::pow(5.19 / 3.171, std::log(33.0 / 32) / std::log(90.0 / 32)) * 7.5 * 0.225;
  EXPECT_NEAR(share(DoubtKind::kInterpolation), (log_33 - at_33) / step, 1e-9);
  EXPECT_EQ(share(DoubtKind::kStreams), -1);
  EXPECT_EQ(share(DoubtKind::kDraftedRatio), -1);
}

TEST(Step, EveryAssumptionAddsItsDoubt) {
  CostModel m = b300();
  const double alone = total_doubt(doubts(m, kBlock8));
  EXPECT_GT(total_doubt(doubts(m, {4, 8, 8, 1})), alone);  // more streams than were measured
  m.drafted.reset();
  m.drafted_ratio = kDraftedRatio;
  m.ratio_is_borrowed = true;
  // 30 % of a rest that is 86 % of the step
  EXPECT_NEAR(total_doubt(doubts(m, kBlock8)), 0.3 * 12.53 / 14.52, 0.01);
}

TEST(Step, RefusesRowsOutsideTheCurveAndAStep) {
  EXPECT_THAT(check_query(b300(), {16, 255, 16, 1}).error().message, HasSubstr("4096 rows"));
  EXPECT_THAT(check_query(b300(), {1025, 0, 0, 1}).error().message, HasSubstr("1 to 1024"));
  EXPECT_THAT(check_query(b300(), {0, 8, 8, 1}).error().message, HasSubstr("--streams 0"));
  EXPECT_THAT(check_query(b300(), {1, 8, 8, std::nan("")}).error().message, HasSubstr("--rest-factor"));
  EXPECT_TRUE(check_query(b300(), {4, 255, 16, 1}).ok());
}

}  // namespace
}  // namespace ddtree
