#include "checkpoint/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "digits.h"

namespace ddtree {
namespace {

using testing::has_digits;
using ::testing::HasSubstr;

RopeConfig yarn(double theta, double factor, double beta_fast, double mscale) {
  return {.type = RopeType::kYarn,
          .theta = theta,
          .factor = factor,
          .original_max_position = 4096,
          .beta_fast = beta_fast,
          .beta_slow = 1,
          .mscale = mscale,
          .mscale_all_dim = mscale};
}

const RopeConfig kK26 = yarn(50000, 64, 32, 1);
const RopeConfig kThinking = yarn(50000, 64, 1, 1);
const RopeConfig kInstruct = yarn(50000, 32, 1, 1);
const RopeConfig kV3 = yarn(10000, 40, 32, 1);
const RopeConfig kV2Lite = yarn(10000, 40, 32, 0.707);

// Computed independently, in double precision, from the formulas of the YaRN paper as DeepSeek and transformers apply
// them.
TEST(Rope, YarnSpeedsOfPublishedModels) {
  const struct {
    size_t pair;
    const char *k26, *thinking, *instruct, *v3;
  } rows[] = {
      {0, "1", "1", "1", "1"},
      {1, "0.71311108", "0.71311108", "0.71311108", "0.74989421"},
      {8, "0.06687403", "0.06687403", "0.06687403", "0.1"},
      {9, "0.043776656", "0.047688612", "0.047688612", "0.074989421"},
      {14, "0.0044658487", "0.0087942868", "0.0087942868", "0.012447956"},
      {19, "1.5837499e-4", "1.6217599e-3", "1.6217599e-3", "1.3705136e-3"},
      {20, "1.8070234e-5", "1.8070234e-5", "3.6140468e-5", "7.9056942e-4"},
      {25, "3.3323431e-6", "3.3323431e-6", "6.6646862e-6", "1.8747355e-5"},
      {31, "4.3822065e-7", "4.3822065e-7", "8.7644129e-7", "3.3338036e-6"},
  };
  for (const auto& row : rows) {
    EXPECT_TRUE(has_digits(rope_inv_freq(kK26, 64)[row.pair], row.k26)) << row.pair;
    EXPECT_TRUE(has_digits(rope_inv_freq(kThinking, 64)[row.pair], row.thinking)) << row.pair;
    EXPECT_TRUE(has_digits(rope_inv_freq(kInstruct, 64)[row.pair], row.instruct)) << row.pair;
    EXPECT_TRUE(has_digits(rope_inv_freq(kV3, 64)[row.pair], row.v3)) << row.pair;
  }
  EXPECT_EQ(rope_inv_freq(kV2Lite, 64), rope_inv_freq(kV3, 64));
}

TEST(Rope, YarnFactors) {
  EXPECT_TRUE(has_digits(yarn_mscale(64, 1), "1.41588831"));
  EXPECT_TRUE(has_digits(yarn_mscale(32, 1), "1.34657359"));
  EXPECT_TRUE(has_digits(yarn_mscale(40, 1), "1.36888795"));
  EXPECT_TRUE(has_digits(yarn_mscale(40, 0.707), "1.26080378"));
  EXPECT_EQ(yarn_mscale(1, 1), 1);
  EXPECT_TRUE(has_digits(rope_softmax_factor(kK26), "2.00473970"));
  EXPECT_TRUE(has_digits(rope_softmax_factor(kInstruct), "1.81326043"));
  EXPECT_TRUE(has_digits(rope_softmax_factor(kV3), "1.87385421"));
  EXPECT_TRUE(has_digits(rope_softmax_factor(kV2Lite), "1.58962617"));
  for (const RopeConfig& rope : {kK26, kThinking, kInstruct, kV3, kV2Lite}) EXPECT_EQ(rope_amplitude(rope), 1);
}

// Without the two mscales cos and sin carry the whole factor and the softmax none.
TEST(Rope, YarnDefaultsPutTheFactorOnTheRotation) {
  const JsonDocument document = *parse_json(
      R"({"rope_theta": 1e6, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}})",
      "c");
  const RopeConfig rope = *parse_rope(document.root());
  EXPECT_EQ(rope.beta_fast, 32);
  EXPECT_EQ(rope.beta_slow, 1);
  EXPECT_TRUE(has_digits(rope_amplitude(rope), "1.138629436"));  // 0.1 ln 4 + 1
  EXPECT_EQ(rope_softmax_factor(rope), 1);
}

TEST(Rope, PlainSpeeds) {
  const RopeConfig rope{.theta = 10000};
  const std::vector<double> speed = rope_inv_freq(rope, 8);
  ASSERT_EQ(speed.size(), 4u);
  EXPECT_DOUBLE_EQ(speed[0], 1);
  EXPECT_DOUBLE_EQ(speed[1], 0.1);
  EXPECT_DOUBLE_EQ(speed[2], 0.01);
  EXPECT_DOUBLE_EQ(speed[3], 0.001);
  EXPECT_EQ(rope_amplitude(rope), 1);
  EXPECT_EQ(rope_softmax_factor(rope), 1);
}

// A context of fewer positions than one turn of the fastest pair puts both ends of the ramp on pair 0.
TEST(Rope, ARampOfNoLengthIsAStep) {
  RopeConfig rope = yarn(10000, 4, 32, 1);
  rope.original_max_position = 6;
  const std::vector<double> speed = rope_inv_freq(rope, 8);
  EXPECT_DOUBLE_EQ(speed[0], 1);
  EXPECT_DOUBLE_EQ(speed[1], 0.1 / 4);
  EXPECT_DOUBLE_EQ(speed[3], 0.001 / 4);
}

RopeConfig parsed(std::string_view text) {
  const JsonDocument document = *parse_json(text, "config.json");
  const Result<RopeConfig> rope = parse_rope(document.root());
  EXPECT_TRUE(rope.ok()) << rope.error().message;
  return rope.ok() ? *rope : RopeConfig{};
}

TEST(Rope, BothSpellings) {
  const char* yarn_fields =
      R"("factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
      "mscale": 1.0, "mscale_all_dim": 1.0)";
  for (const char* block : {"rope_scaling", "rope_parameters"}) {
    for (const char* type : {"type", "rope_type"}) {
      for (const bool inside : {false, true}) {
        const std::string theta = R"("rope_theta": 50000.0, )";
        const RopeConfig rope = parsed("{" + (inside ? "" : theta) + "\"" + block + "\": {" + (inside ? theta : "") +
                                       "\"" + type + "\": \"yarn\", " + yarn_fields + "}}");
        EXPECT_EQ(rope.theta, 50000);
        EXPECT_EQ(rope_inv_freq(rope, 64), rope_inv_freq(kK26, 64)) << block << type << inside;
      }
    }
  }
}

TEST(Rope, PlainInEverySpelling) {
  for (const char* text :
       {R"({"rope_theta": 1e4})", R"({"rope_theta": 10000, "rope_scaling": null})",
        R"({"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})",
        R"({"rope_parameters": {"rope_theta": 10000.0}})", R"({"rope_theta": 10000, "rope_parameters": null})",
        R"({"rope_theta": 10000, "rope_scaling": {"type": "default", "rope_theta": 10000.0}})"}) {
    EXPECT_EQ(parsed(text).theta, 10000) << text;
    EXPECT_EQ(parsed(text).type, RopeType::kPlain) << text;
  }
}

TEST(Rope, RefusesByName) {
  const struct {
    const char* text;
    Code code;
    const char* part;
  } cases[] = {
      {R"({})", Code::kInvalidArgument, "rope_theta is missing"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4}})", Code::kInvalidArgument, "rope_theta is missing"},
      {R"({"rope_theta": 0})", Code::kInvalidArgument, "rope_theta: is 0"},
      {R"({"rope_theta": -1e4})", Code::kInvalidArgument, "rope_theta: is -10000"},
      {R"({"rope_theta": 1e400})", Code::kInvalidArgument, "rope_theta"},
      {R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 2e4}})", Code::kInvalidArgument, "contradicts"},
      {R"({"rope_theta": 1e4, "rope_scaling": "yarn"})", Code::kInvalidArgument, "rope_scaling: is \"yarn\""},
      {R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}})", Code::kUnsupported, "\"linear\""},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "llama3", "factor": 8}})", Code::kUnsupported,
       "\"llama3\""},
      {R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "yarn", "type": "default"}})", Code::kInvalidArgument,
       "contradict"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"factor": 8}})", Code::kInvalidArgument, "neither rope_type nor type"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 4096}})",
       Code::kInvalidArgument, "rope_scaling.factor is missing"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 4}})", Code::kInvalidArgument,
       "rope_scaling.original_max_position_embeddings is missing"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 0, "original_max_position_embeddings": 4096}})",
       Code::kInvalidArgument, "rope_scaling.factor: is 0"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 4611686018427387904}})",
       Code::kInvalidArgument, "original_max_position_embeddings: is 4611686018427387904"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096, "beta_fast": 1, "beta_slow": 2}})",
       Code::kInvalidArgument, "beta_fast is smaller"},
      {R"({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 4096, "truncate": false}})",
       Code::kUnsupported, "truncate"},
      {R"({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})",
       Code::kUnsupported, "partial_rotary_factor"},
  };
  for (const auto& c : cases) {
    const JsonDocument document = *parse_json(c.text, "config.json");
    const Result<RopeConfig> rope = parse_rope(document.root());
    ASSERT_FALSE(rope.ok()) << c.text;
    EXPECT_EQ(rope.error().code, c.code) << c.text;
    EXPECT_THAT(rope.error().message, HasSubstr(c.part));
    EXPECT_THAT(rope.error().message, HasSubstr("config.json: "));
  }
}

}  // namespace
}  // namespace ddtree
