#include "spec/logit_adjust.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace ddtree {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

using Tokens = std::vector<int32_t>;
constexpr float kMasked = -std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

std::vector<float> adjusted(std::vector<float> logits, const SamplingParams& params, const Tokens& prompt,
                            const Tokens& output, const Tokens& path) {
  std::vector<int32_t> counts;
  adjust_logits(logits, params, {prompt, output, path}, counts);
  EXPECT_THAT(counts, Each(0));
  return logits;
}

TEST(LogitAdjust, RepetitionCountsPromptAndOutput) {
  // 0: unseen; 1: prompt; 2: output; 3: path; 4: twice everywhere; 5: a negative logit.
  EXPECT_THAT(adjusted({8, 8, 8, 8, 8, -8}, {.repetition_penalty = 2}, {1, 4, 4, 5}, {2, 4, 4}, {3, 4, 4}),
              ElementsAre(8, 4, 4, 4, 4, -16));
}

TEST(LogitAdjust, PresenceAndFrequencyCountTheOutputAlone) {
  EXPECT_THAT(adjusted({8, 8, 8, 8, 8}, {.presence_penalty = 2}, {1, 4}, {2, 4, 4}, {3, 4}),
              ElementsAre(8, 8, 6, 6, 6));
  EXPECT_THAT(adjusted({8, 8, 8, 8, 8}, {.frequency_penalty = 2}, {1, 4}, {2, 4, 4}, {3, 4}),
              ElementsAre(8, 8, 6, 6, 2));
  EXPECT_THAT(adjusted({8, 8}, {.presence_penalty = -1, .frequency_penalty = -2}, {}, {1}, {1}), ElementsAre(8, 13));
}

TEST(LogitAdjust, RepetitionComesBeforeTheOthersAndBiasAfter) {
  EXPECT_THAT(
      adjusted({8, 8},
               {.repetition_penalty = 4, .presence_penalty = 1, .frequency_penalty = 0.5f, .logit_bias = {{1, 16}}}, {},
               {1, 1}, {}),
      ElementsAre(8, 16));  // 8 / 4 − 2 · 0.5 − 1 + 16
}

TEST(LogitAdjust, MinTokensMasksStopsUntilThePositionIsReached) {
  const SamplingParams params = {.logit_bias = {{1, 100}}, .min_tokens = 3, .stop_ids = {1, 2}};
  EXPECT_THAT(adjusted({1, 1, 1}, params, {0, 0, 0, 0}, {}, {}), ElementsAre(1, kMasked, kMasked));
  EXPECT_THAT(adjusted({1, 1, 1}, params, {}, {0}, {0}), ElementsAre(1, kMasked, kMasked));
  EXPECT_THAT(adjusted({1, 1, 1}, params, {}, {0}, {0, 0}), ElementsAre(1, 101, 1));
  EXPECT_THAT(adjusted({1, 1, 1}, params, {}, {0, 0, 0}, {}), ElementsAre(1, 101, 1));
}

TEST(LogitAdjust, BadWordsMatchAcrossPromptOutputAndPath) {
  const SamplingParams params = {.bad_words = {{5, 6, 7, 1}, {2}, {7, 7, 3}}};
  const std::vector<float> even = {0, 0, 0, 0};
  const auto hit = ElementsAre(0, kMasked, kMasked, 0);
  const auto miss = ElementsAre(0, 0, kMasked, 0);
  EXPECT_THAT(adjusted(even, params, {5, 6, 7}, {}, {}), hit);
  EXPECT_THAT(adjusted(even, params, {5}, {6}, {7}), hit);
  EXPECT_THAT(adjusted(even, params, {5}, {}, {6, 7}), hit);
  EXPECT_THAT(adjusted(even, params, {9, 5}, {6, 7}, {}), hit);
  EXPECT_THAT(adjusted(even, params, {}, {4}, {5, 6, 7}), hit);
  EXPECT_THAT(adjusted(even, params, {5, 6}, {9}, {7}), miss);
  EXPECT_THAT(adjusted(even, params, {}, {}, {6, 7}), miss);
  EXPECT_THAT(adjusted(even, params, {5, 6, 7}, {9}, {}), miss);
  EXPECT_THAT(adjusted(even, params, {}, {}, {}), miss);
  EXPECT_THAT(adjusted(even, params, {}, {7}, {7}), ElementsAre(0, 0, kMasked, kMasked));
}

TEST(LogitAdjust, MasksStayAndFiniteStaysFinite) {
  EXPECT_THAT(adjusted({kMasked, kMasked, kMax, -kMax, kMax},
                       {.repetition_penalty = 1e-38f, .presence_penalty = -2, .logit_bias = {{1, 100}, {4, 100}}},
                       {0, 2}, {1, 2, 3}, {}),
              ElementsAre(kMasked, kMasked, kMax, testing::Gt(-kMax), kMax));
  EXPECT_THAT(adjusted({-kMax}, {.repetition_penalty = kMax}, {0}, {}, {}), ElementsAre(-kMax));
}

// A row of a tree has the logits that plain decoding has once the path is committed.
TEST(LogitAdjust, APathActsLikeOutput) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const auto tokens = [&](int longest) {
      Tokens list(random() % (longest + 1));
      for (int32_t& id : list) id = static_cast<int32_t>(random() % 12);
      return list;
    };
    SamplingParams params = {.repetition_penalty = static_cast<float>(1 << random() % 4) / 2,
                             .presence_penalty = static_cast<float>(random() % 3) / 2,
                             .frequency_penalty = static_cast<float>(random() % 3) / 4,
                             .min_tokens = static_cast<int32_t>(random() % 12),
                             .stop_ids = {3, 4}};
    for (int i = 0; i < 6; ++i) params.bad_words.push_back(tokens(3)), params.bad_words.back().push_back(i);
    std::vector<float> logits(12);
    for (float& x : logits) x = static_cast<float>(random() % 64) / 4 - 8;
    const Tokens prompt = tokens(6), output = tokens(6), path = tokens(6);
    Tokens whole = output;
    whole.insert(whole.end(), path.begin(), path.end());
    const std::vector<float> plain = adjusted(logits, params, prompt, whole, {});
    EXPECT_EQ(adjusted(logits, params, prompt, output, path), plain);

    // And by the definitions, one token at a time; all values are exact in float32.
    Tokens all = prompt;
    all.insert(all.end(), whole.begin(), whole.end());
    for (int32_t id = 0; id < 12; ++id) {
      float expected = logits[id];
      const auto count = static_cast<float>(std::ranges::count(whole, id));
      if (std::ranges::count(all, id) > 0)
        expected *= expected > 0 ? 1 / params.repetition_penalty : params.repetition_penalty;
      expected -= count * params.frequency_penalty + (count > 0 ? params.presence_penalty : 0);
      if ((id == 3 || id == 4) && whole.size() < static_cast<size_t>(params.min_tokens)) expected = kMasked;
      for (const Tokens& words : params.bad_words)
        if (words.back() == id && words.size() - 1 <= all.size() &&
            std::equal(words.begin(), words.end() - 1, all.end() - (words.size() - 1)))
          expected = kMasked;
      EXPECT_EQ(plain[id], expected);
    }
  }
}

}  // namespace
}  // namespace ddtree
