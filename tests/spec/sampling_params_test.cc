#include "spec/sampling_params.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

namespace ddtree {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kVocab = 100;

std::string fault(const std::function<void(SamplingParams&)>& change) {
  SamplingParams params;
  change(params);
  const Status status = validate(params, kVocab);
  if (status.ok()) return "";
  EXPECT_EQ(status.error().code, Code::kInvalidArgument);
  return status.error().message;
}

TEST(SamplingParams, AcceptsDefaultsAndLimits) {
  using P = SamplingParams;
  EXPECT_EQ(fault([](P&) {}), "");
  for (const float t : {0.0f, -0.0f, 1e-38f, 1e-6f, 1.0f, 2.0f}) EXPECT_EQ(fault([&](P& p) { p.temperature = t; }), "");
  for (const float v : {1e-38f, 0.5f, 1.0f}) EXPECT_EQ(fault([&](P& p) { p.top_p = v; }), "");
  for (const float v : {0.0f, 0.5f, 1.0f}) EXPECT_EQ(fault([&](P& p) { p.min_p = v; }), "");
  for (const int32_t v : {-1, 0, 1, std::numeric_limits<int32_t>::max()})
    EXPECT_EQ(fault([&](P& p) { p.top_k = v; }), "");
  for (const float v : {1e-38f, 1.0f, std::numeric_limits<float>::max()})
    EXPECT_EQ(fault([&](P& p) { p.repetition_penalty = v; }), "");
  for (const float v : {-2.0f, 0.0f, 2.0f})
    EXPECT_EQ(fault([&](P& p) { p.presence_penalty = p.frequency_penalty = v; }), "");
  EXPECT_EQ(fault([](P& p) { p.logit_bias.assign(1024, {99, -100.0f}); }), "");
  EXPECT_EQ(fault([](P& p) { p.bad_words.assign(1024, std::vector<int32_t>(64, 99)); }), "");
  EXPECT_EQ(fault([](P& p) { p.stop_ids.assign(1024, 0); }), "");
  for (const int32_t v : {-1, 0, 20}) EXPECT_EQ(fault([&](P& p) { p.logprobs = v; }), "");
}

TEST(SamplingParams, RefusesWhatIsOutside) {
  using P = SamplingParams;
  for (const float t : {-1e-30f, -1.0f, 2.0001f, kInf, -kInf, kNan})
    EXPECT_THAT(fault([&](P& p) { p.temperature = t; }), HasSubstr("temperature: ")) << t;
  for (const float v : {0.0f, -0.1f, 1.0001f, kInf, kNan})
    EXPECT_THAT(fault([&](P& p) { p.top_p = v; }), HasSubstr("top_p: ")) << v;
  for (const float v : {-0.1f, 1.0001f, kNan})
    EXPECT_THAT(fault([&](P& p) { p.min_p = v; }), HasSubstr("min_p: ")) << v;
  for (const float v : {0.0f, -1.0f, kInf, kNan})
    EXPECT_THAT(fault([&](P& p) { p.repetition_penalty = v; }), HasSubstr("repetition_penalty: ")) << v;
  for (const float v : {-2.01f, 2.01f, kNan}) {
    EXPECT_THAT(fault([&](P& p) { p.presence_penalty = v; }), HasSubstr("presence_penalty: ")) << v;
    EXPECT_THAT(fault([&](P& p) { p.frequency_penalty = v; }), HasSubstr("frequency_penalty: ")) << v;
  }
  EXPECT_EQ(fault([](P& p) { p.top_k = -2; }), "top_k: -2 is not −1 or 0 (off) or more");
  EXPECT_THAT(fault([](P& p) { p.min_tokens = -1; }), HasSubstr("min_tokens: -1"));
  EXPECT_THAT(fault([](P& p) { p.logprobs = -2; }), HasSubstr("logprobs: -2"));
  EXPECT_EQ(fault([](P& p) { p.logprobs = 21; }), "logprobs: 21 is not in 0 … 20 (or −1, off)");
}

TEST(SamplingParams, RefusesListsThatDoNotFit) {
  using P = SamplingParams;
  EXPECT_EQ(fault([](P& p) { p.logit_bias = {{1, 0.0f}, {100, 1.0f}}; }), "logit_bias: token 100 is not in 0 … 99");
  EXPECT_THAT(fault([](P& p) { p.logit_bias = {{-1, 0.0f}}; }), HasSubstr("logit_bias: token -1"));
  for (const float v : {100.5f, -100.5f, kInf, kNan})
    EXPECT_THAT(fault([&](P& p) { p.logit_bias = {{1, v}}; }), HasSubstr("logit_bias: ")) << v;
  EXPECT_EQ(fault([](P& p) { p.logit_bias.assign(1025, {1, 0.0f}); }), "logit_bias: has 1025 entries, not 0 to 1024");
  EXPECT_EQ(fault([](P& p) { p.bad_words = {{1}, {}}; }), "bad_words[1]: has 0 entries, not 1 to 64");
  EXPECT_THAT(fault([](P& p) { p.bad_words = {{1}, {2, 100}}; }), HasSubstr("bad_words[1]: token 100"));
  EXPECT_THAT(fault([](P& p) { p.bad_words = {std::vector<int32_t>(65, 1)}; }), HasSubstr("bad_words[0]: has 65"));
  EXPECT_THAT(fault([](P& p) { p.bad_words.assign(1025, {1}); }), HasSubstr("bad_words: has 1025"));
  EXPECT_THAT(fault([](P& p) { p.stop_ids = {0, -1}; }), HasSubstr("stop_ids: token -1"));
  EXPECT_THAT(fault([](P& p) { p.stop_ids.assign(1025, 1); }), HasSubstr("stop_ids: has 1025"));
}

TEST(SamplingParams, GreedyWithoutExtrasNeedsTheTopLogitOnly) {
  using P = SamplingParams;
  const auto needs = [](const std::function<void(P&)>& change) {
    P params;
    change(params);
    return needs_full_logits(params);
  };
  EXPECT_FALSE(needs([](P&) {}));
  EXPECT_FALSE(needs([](P& p) { p.temperature = 9e-6f; }));
  EXPECT_FALSE(needs([](P& p) { p.top_k = 5, p.top_p = 0.5f, p.min_p = 0.5f, p.seed = 9; }));  // greedy ignores them
  EXPECT_FALSE(needs([](P& p) { p.min_tokens = 3; }));
  EXPECT_FALSE(needs([](P& p) { p.stop_ids = {1}; }));
  EXPECT_TRUE(needs([](P& p) { p.min_tokens = 3, p.stop_ids = {1}; }));
  EXPECT_TRUE(needs([](P& p) { p.temperature = 1e-5f; }));
  EXPECT_TRUE(needs([](P& p) { p.repetition_penalty = 1.1f; }));
  EXPECT_TRUE(needs([](P& p) { p.presence_penalty = -0.1f; }));
  EXPECT_TRUE(needs([](P& p) { p.frequency_penalty = 0.1f; }));
  EXPECT_TRUE(needs([](P& p) { p.logit_bias = {{1, 0.5f}}; }));
  EXPECT_TRUE(needs([](P& p) { p.bad_words = {{1}}; }));
  EXPECT_TRUE(needs([](P& p) { p.logprobs = 0; }));
}

}  // namespace
}  // namespace ddtree
