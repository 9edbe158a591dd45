// Routing rules where implementations have gone wrong. Expert e answers 1 in output e and 0 elsewhere, so that moe()
// returns the routing weights.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "machines.h"
#include "row_run.h"

namespace ddtree::ops {
namespace {

constexpr float kNegative = -std::numeric_limits<float>::infinity();

// Router logits are given as they are: x = (1, 0, …), so that logit e is the router's first column.
struct Routed {
  MoeRouting routing;
  std::vector<float> logits;
  std::vector<float> bias = {};
};

std::vector<float> route(Backend& backend, const Routed& r) {
  constexpr float kSiluOfOne = 0.7310585786f;
  const auto n = static_cast<int64_t>(r.logits.size());
  WeightMaker maker(1);
  std::vector<float> router(n * n), first(n), one(n, 0.0f);
  for (int64_t e = 0; e < n; ++e) router[e * n] = r.logits[e];
  first[0] = 1;
  MoeSource source{r.routing, maker.plain(n, n, router), {}, {}, {}};
  if (!r.bias.empty()) source.bias = maker.vector(r.bias);
  for (int64_t e = 0; e < n; ++e) {
    std::vector<float> down(n);
    down[e] = 1 / kSiluOfOne;
    source.experts.push_back({maker.plain(1, n, first), maker.plain(1, n, first), maker.plain(n, 1, down)});
  }
  const auto w = ready(backend.prepare(source));
  const Row row{0, first, 0, 0};
  RowRun run(backend, std::span(&row, 1));
  const TensorView out = run.output(n);
  backend.moe(out, run.input(0, n), *w);
  return run.finish();
}

void expect_weights(const Routed& routed, const std::vector<double>& want) {
  for (const Machine& machine : machines()) {
    const std::vector<float> got = route(*make(machine), routed);
    ASSERT_EQ(got.size(), want.size());
    for (size_t e = 0; e < want.size(); ++e)
      EXPECT_NEAR(got[e], want[e], 1e-6 * std::fabs(want[e])) << machine.name << ", expert " << e;
  }
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

constexpr MoeRouting kSigmoid = {MoeRouting::Score::kSigmoid, 2, 1, 1, true, true, 1};

TEST(Router, BiasSelectsButDoesNotWeigh) {
  const double a = logistic(1), b = logistic(-2);
  expect_weights({kSigmoid, {1, 0.5f, 0, -2}, {0, 0, 0, 3}}, {a / (a + b), 0, 0, b / (a + b)});
}

TEST(Router, ScaleComesAfterNormalising) {
  MoeRouting routing = kSigmoid;
  routing.scale = 2.827f;
  const double a = logistic(1), b = logistic(0.5);
  expect_weights({routing, {1, 0.5f, 0}}, {2.827 * a / (a + b), 2.827 * b / (a + b), 0});
  routing.normalise = false;
  expect_weights({routing, {1, 0.5f, 0}}, {2.827 * a, 2.827 * b, 0});
}

// Sigmoids of −18 next to biases of 12: the weights must come from the unbiased scores, whose digits a sum would lose.
TEST(Router, WeightsSurviveALargeBias) {
  const double a = logistic(-18), b = logistic(-19);
  expect_weights({kSigmoid, {-18, -19, 3, 4}, {12, 12, 0, 0}}, {a / (a + b), b / (a + b), 0, 0});
}

// Scores of 10⁻³⁹ and less: 10⁻²⁰ in the divisor keeps the weights finite.
TEST(Router, VanishingScoresGiveVanishingWeights) {
  for (const Machine& machine : machines())
    for (float weight : route(*make(machine), {kSigmoid, {-90, -95, -100, kNegative}}))
      EXPECT_TRUE(weight >= 0 && weight < 1e-18) << machine.name << ": " << weight;
}

TEST(Router, TiesGoToTheLowerExpert) {
  expect_weights({kSigmoid, {1, 1, 1, 1, 1}}, {0.5, 0.5, 0, 0, 0});
  expect_weights({kSigmoid, {0, 2, 1, 1, 1}},
                 {0, logistic(2) / (logistic(2) + logistic(1)), logistic(1) / (logistic(2) + logistic(1)), 0, 0});
  // At a bias of 12, float32 has no room for the difference of 10⁻⁸ and 2·10⁻⁸: a tie.
  expect_weights({{MoeRouting::Score::kSigmoid, 1, 1, 1, true, true, 1}, {-18.4f, -17.7f, 0}, {12, 12, 0}}, {1, 0, 0});
}

// All biased scores of the kept group are negative, so that a masked expert at 0 would win.
TEST(Router, MaskedGroupsNeverWin) {
  MoeRouting routing = kSigmoid;
  routing.groups = 2;
  expect_weights({routing, {0, 0, 0, 0, 0, 0}, {-1, -1.25f, -9, -2, -2, -2}}, {0.5, 0.5, 0, 0, 0, 0});
  // And one with a masked expert whose own score is the best of all: its group's two best sum to less.
  expect_weights({routing, {0, 0, 0, 0, 0, 0}, {2, -3, -3, 0.25f, 0.5f, 0}}, {0, 0, 0, 0.5, 0.5, 0});
}

TEST(Router, GroupScoreIsTheBestWhereAsked) {
  MoeRouting routing = kSigmoid;
  routing.groups = 2;
  routing.group_by_top2 = false;
  expect_weights({routing, {0, 0, 0, 0, 0, 0}, {2, -3, -3, 0.25f, 0.5f, 0}}, {0.5, 0.5, 0, 0, 0, 0});
}

TEST(Router, EqualGroupsGoToTheLower) {
  MoeRouting routing = kSigmoid;
  routing.groups = 3;
  routing.top_groups = 2;
  expect_weights({routing, {1, 1, 1, 1, 1, 1}}, {0.5, 0.5, 0, 0, 0, 0});
}

TEST(Router, OneGroupIsPlainTopK) {
  expect_weights({kSigmoid, {-3, 4, -5, 6}, {}},
                 {0, logistic(4) / (logistic(4) + logistic(6)), 0, logistic(6) / (logistic(4) + logistic(6))});
}

// e¹ … e⁴ over their sum, 84.7910: three of them, not renormalised.
TEST(Router, SoftmaxWithoutRenormalising) {
  const MoeRouting routing = {MoeRouting::Score::kSoftmax, 3, 1, 1, true, false, 1};
  expect_weights({routing, {1, 2, 3, 4}},
                 {0, std::exp(2.0) / 84.791024, std::exp(3.0) / 84.791024, std::exp(4.0) / 84.791024});
  expect_weights({routing, {1001, 1002, 1003, 1004}},
                 {0, std::exp(2.0) / 84.791024, std::exp(3.0) / 84.791024, std::exp(4.0) / 84.791024});
}

TEST(Router, NanLogitsEnd) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Machine& machine : machines()) {
    EXPECT_EQ(route(*make(machine), {kSigmoid, {nan, nan, nan, nan}}).size(), 4u);
    MoeRouting groups = kSigmoid;
    groups.groups = 2;
    EXPECT_EQ(route(*make(machine), {groups, {nan, 1, nan, nan}, {0, nan, 0, 0}}).size(), 4u);
  }
}

}  // namespace
}  // namespace ddtree::ops
