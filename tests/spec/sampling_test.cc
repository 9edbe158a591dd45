#include "spec/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/math/distributions/chi_squared.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/philox.h"

namespace ddtree {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr double kLeastPValue = 1e-6;
constexpr int kDraws = 100000;

int32_t sample(std::vector<float> logits, const SamplingParams& params, const RowHistory& history = {},
               int32_t choice = 0) {
  static SamplerScratch scratch;
  const Result<int32_t> token = sample_row(logits, params, history, choice, scratch);
  EXPECT_TRUE(token.ok()) << token.error().message;
  return token.ok() ? *token : -1;
}

// The p-value of Pearson's χ² test; cells of expectation below 5 are merged.
double p_value(const std::vector<int64_t>& observed, const std::vector<double>& probability) {
  const double draws = static_cast<double>(std::accumulate(observed.begin(), observed.end(), int64_t{0}));
  double statistic = 0, rare_observed = 0, rare_expected = 0;
  int cells = 0;
  const auto add = [&](double o, double e) { statistic += (o - e) * (o - e) / e, ++cells; };
  for (size_t i = 0; i < observed.size(); ++i) {
    const auto o = static_cast<double>(observed[i]);
    if (probability[i] * draws >= 5) {
      add(o, probability[i] * draws);
    } else {
      rare_observed += o;
      rare_expected += probability[i] * draws;
    }
  }
  if (rare_expected > 0) add(rare_observed, rare_expected);
  if (cells < 2) return 1;
  return boost::math::cdf(boost::math::complement(boost::math::chi_squared(cells - 1), statistic));
}

// The exact law of a row, by definition.
std::vector<double> law(const std::vector<float>& logits, const SamplingParams& p) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  std::vector<double> probability(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) probability[i] = std::exp((logits[i] - logits[order[0]]) / p.temperature);
  const auto normalize = [&] {
    const double sum = std::accumulate(probability.begin(), probability.end(), 0.0);
    for (double& x : probability) x /= sum;
  };
  for (size_t n = p.top_k > 0 ? p.top_k : logits.size(); n < logits.size(); ++n) probability[order[n]] = 0;
  normalize();
  double sum = 0;
  for (const int32_t id : order) {
    if (sum >= p.top_p) probability[id] = 0;
    sum += probability[id];
  }
  const double least = p.min_p * probability[order[0]];
  for (double& x : probability) x = x < least ? 0 : x;
  normalize();
  return probability;
}

const std::vector<float>& test_logits() {
  static const std::vector<float> logits = {0.3f, 2.1f,  -1.0f, 1.7f, 0.0f, -4.0f, 2.0f,  0.9f,
                                            1.1f, -0.4f, 0.6f,  2.2f, 1.4f, -2.0f, -9.0f, 0.2f};
  return logits;
}

std::vector<SamplingParams> test_params() {
  return {{.temperature = 1},
          {.temperature = 0.6f},
          {.temperature = 2},
          {.temperature = 1, .top_p = 0.9f},
          {.temperature = 1, .min_p = 0.2f},
          {.temperature = 1, .top_k = 5},
          {.temperature = 0.8f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 12}};
}

void expect_law(const std::vector<int64_t>& observed, const std::vector<double>& probability, const char* over) {
  for (size_t i = 0; i < observed.size(); ++i) {
    EXPECT_TRUE(probability[i] > 0 || observed[i] == 0) << over << ", token " << i;
  }
  EXPECT_GT(p_value(observed, probability), kLeastPValue) << over;
}

TEST(SamplingLaw, MatchesTheExactProbabilities) {
  const std::vector<int32_t> output(kDraws, 0);
  for (SamplingParams params : test_params()) {
    SCOPED_TRACE(::testing::Message() << params.temperature << " " << params.top_k << " " << params.top_p << " "
                                      << params.min_p);
    const std::vector<double> probability = law(test_logits(), params);
    std::vector<int64_t> seeds(16), positions(16), choices(16);
    for (int i = 0; i < kDraws; ++i) {
      params.seed = static_cast<uint64_t>(i);
      ++seeds[sample(test_logits(), params)];
      params.seed = 0x123456789abcdef0;
      ++positions[sample(test_logits(), params, {{}, std::span(output).first(i), {}})];
      ++choices[sample(test_logits(), params, {}, i)];
    }
    expect_law(seeds, probability, "seeds");
    expect_law(positions, probability, "positions");
    expect_law(choices, probability, "choices");
  }
}

TEST(SamplingLaw, TheTestSeesAWrongTemperature) {
  std::vector<int64_t> counts(16);
  for (int i = 0; i < kDraws; ++i)
    ++counts[sample(test_logits(), {.temperature = 1.05f, .seed = static_cast<uint64_t>(i)})];
  EXPECT_LT(p_value(counts, law(test_logits(), {.temperature = 1})), kLeastPValue);
}

TEST(SamplingLaw, FollowsPenaltiesAndMasks) {
  const std::vector<int32_t> prompt = {3, 5}, output = {1, 1, 6}, path = {11, 1};
  SamplingParams params = {.temperature = 1,
                           .repetition_penalty = 1.5f,
                           .presence_penalty = 0.5f,
                           .frequency_penalty = 0.25f,
                           .logit_bias = {{0, 1.5f}},
                           .bad_words = {{11, 1, 12}},
                           .min_tokens = 10,
                           .stop_ids = {8}};
  std::vector<float> expected = test_logits();
  expected[3] /= 1.5f;
  expected[5] *= 1.5f;
  expected[1] = expected[1] / 1.5f - 3 * 0.25f - 0.5f;
  expected[6] = expected[6] / 1.5f - 0.25f - 0.5f;
  expected[11] = expected[11] / 1.5f - 0.25f - 0.5f;
  expected[0] += 1.5f;
  expected[12] = expected[8] = -kInf;
  std::vector<int64_t> counts(16);
  for (int i = 0; i < kDraws; ++i) {
    params.seed = static_cast<uint64_t>(i);
    ++counts[sample(test_logits(), params, {prompt, output, path})];
  }
  expect_law(counts, law(expected, {.temperature = 1}), "seeds");
}

// Pairs of draws whose keys differ in one part must be as common as independent draws.
TEST(SamplingLaw, NeighbouringKeysAreIndependent) {
  const std::vector<float> logits = {0.5f, 0, 0, -0.5f};
  const std::vector<double> p = law(logits, {.temperature = 1});
  std::vector<double> product;
  for (const double a : p)
    for (const double b : p) product.push_back(a * b);
  const std::vector<int32_t> output(kDraws + 1, 0);
  const auto at = [&](uint64_t seed, int32_t choice, int position) {
    return sample(logits, {.temperature = 1, .seed = seed}, {{}, std::span(output).first(position), {}}, choice);
  };
  std::vector<int64_t> position(16), choice(16), seed(16), high_seed(16);
  for (int i = 0; i < kDraws; ++i) {
    ++position[4 * at(7, 0, i) + at(7, 0, i + 1)];
    ++choice[4 * at(7, 0, i) + at(7, 1, i)];
    ++seed[4 * at(i, 0, 3) + at(i + 1, 0, 3)];
    ++high_seed[4 * at(i, 0, 3) + at(i + (uint64_t{1} << 32), 0, 3)];
  }
  for (const auto* pairs : {&position, &choice, &seed, &high_seed}) EXPECT_GT(p_value(*pairs, product), kLeastPValue);
}

// Gumbel-max in its textbook form, without short cuts.
TEST(SampleRow, IsGumbelMaxWithNoiseByToken) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::normal_distribution<float> normal(0, 1.0f + static_cast<float>(random() % 4));
    std::vector<float> logits(1 + random() % 3000);
    for (float& x : logits) x = normal(random);
    const SamplingParams params = {.temperature = 0.5f + static_cast<float>(random() % 3) / 2,
                                   .seed = (uint64_t{random()} << 32) | random()};
    const std::vector<int32_t> output(random() % 100), path(random() % 16);
    const auto choice = static_cast<int32_t>(random() % 4);
    double best = -kInf;
    int32_t expected = -1;
    for (uint32_t id = 0; id < logits.size(); ++id) {
      const PhiloxCounter words = philox4x32(
          {id, static_cast<uint32_t>(output.size() + path.size()), static_cast<uint32_t>(choice), 0}, params.seed);
      const double u = (static_cast<double>((uint64_t{words[0]} << 32 | words[1]) >> 12) + 0.5) / 0x1p52;
      const double score = logits[id] / double{params.temperature} - std::log(-std::log1p(-u));
      if (score > best) best = score, expected = static_cast<int32_t>(id);
    }
    EXPECT_EQ(sample(logits, params, {{}, output, path}, choice), expected);
  }
}

TEST(SampleRow, FiltersRemoveTokensWithoutChangingTheRace) {
  std::mt19937 random(2);
  int same = 0;
  for (int round = 0; round < 2000; ++round) {
    SamplingParams params = {.temperature = 1, .seed = random()};
    const int32_t open = sample(test_logits(), params);
    params.top_k = 6;
    const int32_t filtered = sample(test_logits(), params);
    const bool survives = law(test_logits(), params)[open] > 0;
    EXPECT_TRUE(!survives || filtered == open);
    same += survives;
  }
  EXPECT_GT(same, 1000);
}

// What makes tree decoding lossless: a drafted path and committed output are the same history.
TEST(SampleRow, APathDrawsLikeOutput) {
  std::mt19937 random(3);
  for (int round = 0; round < 1000; ++round) {
    std::vector<int32_t> output(random() % 20);
    for (int32_t& id : output) id = static_cast<int32_t>(random() % 16);
    const SamplingParams params = {
        .temperature = 1, .top_p = 0.9f, .seed = random(), .repetition_penalty = 1.3f, .frequency_penalty = 0.3f};
    const size_t cut = random() % (output.size() + 1);
    const std::span<const int32_t> all = output;
    EXPECT_EQ(sample(test_logits(), params, {{}, all.first(cut), all.subspan(cut)}, 2),
              sample(test_logits(), params, {{}, all, {}}, 2));
  }
}

TEST(SampleRow, ColdIsGreedy) {
  const std::vector<float> logits = {1.0f, 2.5f, 2.5f, -kInf, 2.4f};
  for (const float t : {0.0f, -0.0f, 1e-38f, 1e-6f}) EXPECT_EQ(sample(logits, {.temperature = t, .seed = 3}), 1) << t;
  for (int seed = 0; seed < 200; ++seed)  // the two best tie: either, and nothing else
    EXPECT_THAT(sample(logits, {.temperature = 1e-4f, .seed = static_cast<uint64_t>(seed)}), ::testing::AnyOf(1, 2));
  EXPECT_EQ(sample({0.0f, -0.0f}, {}), 0);
  EXPECT_EQ(sample({-0.0f, 0.0f}, {}), 0);
}

TEST(SampleRow, TakesExtremeLogits) {
  for (const float t : {0.0f, 1e-5f, 1e-4f, 1.0f, 2.0f}) {
    EXPECT_EQ(sample({-kMax, kMax, 0}, {.temperature = t}), 1);
    EXPECT_EQ(sample({-kInf, -kMax, -kInf}, {.temperature = t}), 1);
    EXPECT_EQ(sample({1e-45f}, {.temperature = t}), 0);
    EXPECT_EQ(sample({-kInf, -kMax, -kInf}, {.temperature = t, .top_p = 0.1f, .min_p = 1, .top_k = 2}), 1);
    EXPECT_THAT(sample({kMax, kMax, -kMax}, {.temperature = t, .seed = 4}), ::testing::AnyOf(0, 1));
  }
}

TEST(SampleRow, RefusesWhatIsNotANumber) {
  SamplerScratch scratch;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(), kInf})
    for (const float t : {0.0f, 1.0f})
      for (const size_t at : {0, 7, 15}) {
        std::vector<float> logits = test_logits();
        logits[at] = bad;
        const SamplingParams params = {.temperature = t, .bad_words = {{static_cast<int32_t>(at)}}};  // even if masked
        const Result<int32_t> token = sample_row(logits, params, {}, 0, scratch);
        ASSERT_FALSE(token.ok());
        EXPECT_EQ(token.error().code, Code::kCorrupt);
        EXPECT_THAT(token.error().message, HasSubstr("not finite"));
        EXPECT_FALSE(token_logprobs(logits, 0, 3).ok());
      }
}

TEST(SampleRow, RefusesWhenEverythingIsMasked) {
  SamplerScratch scratch;
  std::vector<float> logits = {1, 2};
  const Result<int32_t> token = sample_row(logits, {.bad_words = {{0}, {1}}}, {}, 0, scratch);
  ASSERT_FALSE(token.ok());
  EXPECT_EQ(token.error().code, Code::kInvalidArgument);
  EXPECT_FALSE(token_logprobs(std::vector<float>{-kInf, -kInf}, 0, 1).ok());
}

TEST(TokenLogprobs, AreTheRawLogSoftmax) {
  std::mt19937 random(4);
  for (int round = 0; round < 100; ++round) {
    std::normal_distribution<float> normal(0, 4);
    std::vector<float> logits(1 + random() % 500);
    for (float& x : logits) x = random() % 10 == 0 ? -kInf : std::round(4 * normal(random)) / 4;
    logits[0] = 0;
    long double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<long double>(x));
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
    const auto chosen = static_cast<int32_t>(random() % logits.size());
    const int n = static_cast<int>(random() % 21);
    const auto actual = token_logprobs(logits, chosen, n);
    ASSERT_TRUE(actual.ok());
    order.resize(std::min<size_t>(n, order.size()));
    order.insert(order.begin(), chosen);
    ASSERT_EQ(actual->size(), order.size());
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ((*actual)[i].id, order[i]);
      EXPECT_FLOAT_EQ((*actual)[i].logprob, static_cast<float>(logits[order[i]] - std::log(sum)));
    }
  }
}

TEST(TokenLogprobs, SurviveExtremes) {
  const auto pair = token_logprobs(std::vector<float>{-kMax, kMax}, 0, 5);
  ASSERT_TRUE(pair.ok());
  ASSERT_EQ(pair->size(), 3u);
  EXPECT_EQ((*pair)[0].logprob, -kInf);  // −2 · FLT_MAX is beyond float32
  EXPECT_EQ((*pair)[1].id, 1);
  EXPECT_EQ((*pair)[1].logprob, 0.0f);
}

}  // namespace
}  // namespace ddtree
