#include "spec/logit_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

namespace ddtree {
namespace {

using ::testing::ElementsAre;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

std::set<int32_t> survivors(const std::vector<float>& logits, const SamplingParams& params) {
  FilterScratch scratch;
  std::set<int32_t> ids;
  for (const Survivor& s : filter_logits(logits, params, scratch)) {
    EXPECT_TRUE(ids.insert(s.id).second);
    EXPECT_GT(s.weight, 0);
    EXPECT_LE(s.weight, 1);
  }
  return ids;
}

struct Expected {
  std::set<int32_t> ids;
  bool near;  // within rounding of a different nucleus
};

// By definition, on sorted long doubles. `slack` bounds how far integer masses lead the nucleus's sums astray: each of
// n masses is cut by less than 2^-40 of the highest, which is part of both sums.
Expected by_sorting(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] != kMasked) order.push_back(static_cast<int32_t>(i));
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size()) order.resize(p.top_k);
  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<long double>(logits[id]) - logits[order[0]]) / p.temperature);
  };
  long double total = 0, sum = 0;
  for (const int32_t id : order) total += weight(id);
  const long double slack = 2 * static_cast<long double>(order.size()) * 0x1p-40L;
  Expected expected = {{}, false};
  for (size_t n = 0; n < order.size() && (n == 0 || p.top_p >= 1 || sum < p.top_p * total); ++n) {
    sum += weight(order[n]);
    expected.near |= p.top_p < 1 && std::abs(sum - p.top_p * total) < slack;
    if (weight(order[n]) >= p.min_p) expected.ids.insert(order[n]);
  }
  return expected;
}

TEST(LogitFilter, EqualsTheDefinitionBySorting) {
  std::mt19937 random(1);
  int near = 0, nuclei = 0;
  for (int round = 0; round < 4000; ++round) {
    const int vocab = 1 + static_cast<int>(random() % (round % 10 == 0 ? 4096 : 40));
    std::normal_distribution<float> normal(0, 1.0f + static_cast<float>(random() % 5));
    std::vector<float> logits(vocab);
    for (float& x : logits) x = random() % 20 == 0 ? kMasked : normal(random);
    if (round % 3 == 0)
      for (float& x : logits) x = std::round(x);  // ties
    logits[random() % vocab] = 1;
    SamplingParams params = {.temperature = 0.1f + static_cast<float>(random() % 20) / 10};
    if (random() % 2) params.top_k = static_cast<int32_t>(random() % (vocab + 2));
    if (random() % 2) params.top_p = static_cast<float>(1 + random() % 1000) / 1000;
    if (random() % 3 == 0) params.min_p = static_cast<float>(random() % 1001) / 1000;
    const Expected expected = by_sorting(logits, params);
    nuclei += params.top_p < 1;
    near += expected.near;
    if (!expected.near) {
      ASSERT_EQ(survivors(logits, params), expected.ids)
          << "round " << round << ": vocabulary " << vocab << ", temperature " << params.temperature << ", top_k "
          << params.top_k << ", top_p " << params.top_p << ", min_p " << params.min_p;
    }
  }
  EXPECT_LT(near, nuclei / 50);
}

TEST(LogitFilter, WeightsAreTheSoftmaxRelativeToTheBest) {
  FilterScratch scratch;
  const std::vector<float> logits = {1.0f, 3.0f, kMasked, 2.0f};
  std::vector<double> weight(4, 0);
  for (const Survivor& s : filter_logits(logits, {.temperature = 0.5f}, scratch)) weight[s.id] = s.weight;
  EXPECT_THAT(weight, ElementsAre(std::exp(-4.0), 1.0, 0.0, std::exp(-2.0)));
}

TEST(LogitFilter, TiesGoToTheLowestId) {
  const std::vector<float> logits = {0, 2, 2, 2, 2, -1, 2};
  EXPECT_THAT(survivors(logits, {.temperature = 1, .top_k = 3}), ElementsAre(1, 2, 3));
  EXPECT_THAT(survivors({2, -0.0f, 0.0f, -0.0f}, {.temperature = 1, .top_k = 2}), ElementsAre(0, 1));
  const std::vector<float> eight(8, -3.5f);  // equal masses are exact: the nucleus is exactly p · 8 tokens
  for (int n = 1; n <= 8; ++n) {
    const auto kept = survivors(eight, {.temperature = 1, .top_p = static_cast<float>(n) / 8});
    EXPECT_EQ(kept.size(), static_cast<size_t>(n));
    EXPECT_EQ(*kept.rbegin(), n - 1);
  }
  EXPECT_EQ(survivors(eight, {.temperature = 1, .top_p = 0.5001f}).size(), 5u);
}

TEST(LogitFilter, NucleusIsOfWhatTopKLeaves) {
  // 0.5, 0.25, 0.125, 0.125: of the first two alone, the first has 2/3.
  const std::vector<float> logits = {std::log(4.0f), std::log(2.0f), 0, 0};
  EXPECT_THAT(survivors(logits, {.temperature = 1, .top_p = 0.6f}), ElementsAre(0, 1));
  EXPECT_THAT(survivors(logits, {.temperature = 1, .top_p = 0.6f, .top_k = 2}), ElementsAre(0));
}

TEST(LogitFilter, TheMostProbableTokenAlwaysSurvives) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits(1 + random() % 30);
    for (float& x : logits) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000);
    const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    for (const SamplingParams& p : {SamplingParams{.temperature = 1e-5f},
                                    {.temperature = 1, .top_p = std::numeric_limits<float>::denorm_min()},
                                    {.temperature = 1, .min_p = 1},
                                    {.temperature = 1, .top_k = 1},
                                    {.temperature = 1e-5f, .top_p = 1e-9f, .min_p = 1, .top_k = 1}})
      EXPECT_TRUE(survivors(logits, p).contains(best));
  }
}

TEST(LogitFilter, TheSetDoesNotDependOnTheOrderOfTokens) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    const int vocab = 2000;
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> logits(vocab), shuffled(vocab);
    for (float& x : logits) x = normal(random);
    std::vector<int32_t> place(vocab);
    std::iota(place.begin(), place.end(), 0);
    std::shuffle(place.begin(), place.end(), random);
    for (int i = 0; i < vocab; ++i) shuffled[place[i]] = logits[i];
    const SamplingParams params = {.temperature = 1, .top_p = static_cast<float>(1 + random() % 999) / 1000};
    std::multiset<float> a, b;
    for (const int32_t id : survivors(logits, params)) a.insert(logits[id]);
    for (const int32_t id : survivors(shuffled, params)) b.insert(shuffled[id]);
    EXPECT_EQ(a, b);
  }
}

}  // namespace
}  // namespace ddtree
