#include "engine/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace ddtree {
namespace {

// Two slots of two candidates: 0.6 and 0.3, then 0.5 and 0.25.
Tree small_tree() {
  const float log_prob[] = {std::log(0.6f), std::log(0.3f), std::log(0.5f), std::log(0.25f)};
  const int32_t id[] = {10, 11, 20, 21};
  Tree tree;
  build_tree({2, 2, log_prob, id}, 1, 6, {}, tree);
  return tree;
}

int row_of(const Tree& tree, int32_t first, int32_t second = -1) {
  for (int row = 1; row < tree.size(); ++row) {
    if (second < 0 && tree.depth[row] == 1 && tree.token[row] == first) return row;
    if (second >= 0 && tree.depth[row] == 2 && tree.token[row] == second && tree.token[tree.parent[row]] == first)
      return row;
  }
  return -1;
}

Accepted path(std::initializer_list<int> rows) {
  Accepted out;
  for (int row : rows) out.path[out.length++] = static_cast<int16_t>(row);
  return out;
}

TEST(Calibration, BeginsWithTheDraftersOwnProbabilities) {
  const Tree tree = small_tree();
  std::vector<double> p(tree.size());
  Calibration().probabilities(tree, {}, p);
  EXPECT_EQ(p[0], 1);
  EXPECT_NEAR(p[row_of(tree, 10)], 0.6, 1e-6);
  EXPECT_NEAR(p[row_of(tree, 11)], 0.3, 1e-6);
  EXPECT_NEAR(p[row_of(tree, 10, 20)], 0.3, 1e-6);
  EXPECT_NEAR(p[row_of(tree, 11, 21)], 0.075, 1e-6);
}

// Acceptances drawn at other rates than the drafter's: 0.75 and 0.15 at depth 1; at depth 2 0.5 and 0.25 behind the
// first choice, but 0.1 and 0.05 behind the second.
TEST(Calibration, LearnsTheTrueRatesByDepthAndRankAndOffTheSpine) {
  const Tree tree = small_tree();
  Calibration calibration;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> dice(0, 1);
  for (int i = 0; i < 6000; ++i) {
    AcceptRatio own;
    const double first = dice(random), second = dice(random);
    const int32_t token = first < 0.75 ? 10 : first < 0.9 ? 11 : -1;
    const double one = token == 10 ? 0.5 : 0.1, two = token == 10 ? 0.75 : 0.15;
    Accepted accepted;
    if (token >= 0) {
      accepted = path({row_of(tree, token)});
      if (second < two) {
        accepted.path[accepted.length++] = static_cast<int16_t>(row_of(tree, token, second < one ? 20 : 21));
      }
    }
    calibration.learn(tree, accepted, own);
  }
  std::vector<double> p(tree.size());
  calibration.probabilities(tree, {}, p);
  EXPECT_NEAR(p[row_of(tree, 10)], 0.75, 0.06);
  EXPECT_NEAR(p[row_of(tree, 11)], 0.15, 0.04);
  EXPECT_NEAR(p[row_of(tree, 10, 20)], 0.75 * 0.5, 0.06);
  EXPECT_NEAR(p[row_of(tree, 11, 20)], 0.15 * 0.1, 0.01);
  EXPECT_GT(calibration.ratio(true, 1, 0), 1.1);
  EXPECT_LT(calibration.ratio(false, 2, 0), 0.4);
  EXPECT_EQ(calibration.ratio(true, 3, 0), 1);  // never seen
}

TEST(Calibration, FewTrialsChangeLittle) {
  const Tree tree = small_tree();
  Calibration calibration;
  AcceptRatio own;
  calibration.learn(tree, Accepted{}, own);  // everything rejected, once
  EXPECT_GT(calibration.ratio(true, 1, 0), 0.8);
  EXPECT_GT(own.value(), 0.75);
}

TEST(Calibration, ForgetsWhatIsLongAgo) {
  AcceptRatio ratio;
  for (int i = 0; i < 5000; ++i) ratio.add(0.5, false, 1 - 1.0 / 64);
  for (int i = 0; i < 500; ++i) ratio.add(0.5, i % 2 == 0, 1 - 1.0 / 64);
  EXPECT_NEAR(ratio.value(), 1, 0.05);
}

TEST(Calibration, AStreamsOwnRatioCorrectsItsTreesAndNeverPassesCertainty) {
  const Tree tree = small_tree();
  AcceptRatio poor, lucky;
  for (int i = 0; i < 2000; ++i) poor.add(0.5, i % 8 == 0, 1 - 1.0 / 64), lucky.add(0.2, true, 1 - 1.0 / 64);
  std::vector<double> p(tree.size());
  Calibration().probabilities(tree, poor, p);
  EXPECT_NEAR(p[row_of(tree, 10)], 0.6 * 0.25, 0.06);
  Calibration().probabilities(tree, lucky, p);
  EXPECT_EQ(p[row_of(tree, 10)], 1);
}

}  // namespace
}  // namespace ddtree
