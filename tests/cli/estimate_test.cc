// ddtree estimate, from outside: presets, curve files, and what it refuses.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "base/json.h"
#include "cli/estimate_curves.h"
#include "cli/program.h"

namespace ddtree {
namespace {

using testing::HasSubstr;

const std::string kCurves = DDTREE_SOURCE_DIR "/bench/curves/", kH200 = DDTREE_SOURCE_DIR "/bench/results/h200/";

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

struct Speed {
  int64_t streams, block, rows;
  double rest_factor, experts_ms, rest_ms, step_ms, accepted, tokens_per_second, low, high;
};

std::vector<Speed> estimate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"estimate", "--json"});
  const Ran ran = run_program(arguments);
  EXPECT_EQ(ran.status, 0) << ran.err;
  std::vector<Speed> out;
  if (ran.status != 0) return out;
  const JsonDocument document = *parse_json(ran.out, "output");
  const JsonElements steps = *document.root().get("steps")->elements();
  for (const JsonValue step : steps) {
    const JsonElements speeds = *step.get("speeds")->elements();
    for (const JsonValue s : speeds)
      out.push_back({*step.get_int("streams"), *step.get_int("block"), *step.get_int("rows"),
                     *step.get_double("rest_factor"), *step.get_double("experts_ms"), *step.get_double("rest_ms"),
                     *step.get_double("step_ms"), *s.get_double("accepted"), *s.get_double("tokens_per_second"),
                     *s.get_double("low"), *s.get_double("high")});
  }
  return out;
}

TEST(Estimate, B300PrintsTheReferenceTable) {
  const std::vector<Speed> speeds = estimate({"--preset", "b300"});
  struct Figure {
    int64_t block;
    double rest_factor, accepted, step_ms, tokens_per_second;
  };
  const std::vector<Figure> figures = {{0, 1, 1, 1000.0 / 133, 133}, {8, 1, 4.4, 4400.0 / 303, 303},
                                       {16, 1, 12, 20.9, 570},       {16, 1, 14, 20.9, 670},
                                       {16, 1, 16, 20.9, 765},       {16, 0.6, 12, 14.7, 815},
                                       {16, 0.6, 14, 14.7, 950},     {16, 0.6, 16, 14.7, 1090}};
  for (const Figure& f : figures) {
    const auto it = std::find_if(speeds.begin(), speeds.end(), [&](const Speed& s) {
      return s.block == f.block && s.rest_factor == f.rest_factor && s.accepted == f.accepted;
    });
    ASSERT_NE(it, speeds.end()) << f.block << " " << f.accepted;
    EXPECT_NEAR(it->step_ms, f.step_ms, 0.03 * f.step_ms);
    EXPECT_NEAR(it->tokens_per_second, f.tokens_per_second, 0.03 * f.tokens_per_second);
    if (f.block == 16) {
      EXPECT_NEAR(it->low, 0.7 * it->tokens_per_second, 0.02 * it->tokens_per_second);
      EXPECT_NEAR(it->high, 1.3 * it->tokens_per_second, 0.02 * it->tokens_per_second);
    }
  }
}

TEST(Estimate, TextSaysWhatIsMeasuredScaledAndAssumed) {
  const Ran ran = run_program({"estimate", "--preset", "b300"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  for (const char* says :
       {"measured  expert layer on RTX PRO 6000", "log-log", "scaled    expert time by bandwidth, 1.8 / 8",
        "133 tokens/s", "303 tokens/s", "drafter scaling", "72.9 %", "66.8 %", "plateau: 219 rows", "32 -> 7",
        "10 -> 21", "rest 7.26 ms", "rest 12.53 ms"})
    EXPECT_THAT(ran.out, HasSubstr(says));
}

TEST(Estimate, GivenRestReplacesThePresets) {
  const std::vector<Speed> speeds = estimate({"--preset", "b300", "--rest-ms", "7.3,12.5", "--budget", "32", "--block",
                                              "16", "--accepted", "12", "--rest-factor", "1"});
  ASSERT_EQ(speeds.size(), 2u);
  EXPECT_NEAR(speeds[0].rest_ms, 7.3, 1e-9);
  EXPECT_NEAR(speeds[1].rest_ms, 12.5 * 1.25, 1e-9);
  EXPECT_NEAR(speeds[1].step_ms, 20.9, 0.03 * 20.9);
}

TEST(Estimate, RtxAgainstItsBaseline) {
  const std::vector<Speed> speeds = estimate({"--preset", "rtx-pro-6000"});
  std::vector<double> plain;
  for (const Speed& s : speeds) {
    if (s.block == 0) plain.push_back(s.tokens_per_second);
    EXPECT_GE(s.tokens_per_second, s.streams == 1 ? 138 - 1e-9 : 517 - 1e-9);
  }
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_NEAR(plain[0], 138, 1e-6);
  EXPECT_NEAR(plain[1], 517, 1e-6);
  // 90 rows: 5.19 ms a layer, 60 layers over 8 ranks
  EXPECT_TRUE(std::any_of(speeds.begin(), speeds.end(), [](const Speed& s) {
    return s.rows == 90 && std::abs(s.experts_ms - 5.19 * 60 / 8) < 1e-9;
  }));
}

TEST(Estimate, ABaselineOfOnesOwn) {
  const std::vector<Speed> speeds = estimate(
      {"--curve", kCurves + "rtx-pro-6000.json", "--tp", "8", "--baseline", "1:138,10:517", "--streams", "1,10"});
  const std::vector<Speed> preset = estimate({"--preset", "rtx-pro-6000"});
  ASSERT_EQ(speeds.size(), preset.size());
  for (size_t i = 0; i < speeds.size(); ++i)
    EXPECT_NEAR(speeds[i].tokens_per_second, preset[i].tokens_per_second, 1e-9 * preset[i].tokens_per_second) << i;
}

TEST(Estimate, BothBaselinesOfOnesOwn) {
  const std::vector<Speed> speeds = estimate({"--curve", kCurves + "rtx-pro-6000.json", "--tp", "8", "--bandwidth", "8",
                                              "--baseline", "1:133", "--drafted-baseline", "1:8:8:4.4:303"});
  const std::vector<Speed> preset = estimate({"--preset", "b300"});
  ASSERT_EQ(speeds.size(), preset.size());
  for (size_t i = 0; i < speeds.size(); ++i)
    EXPECT_NEAR(speeds[i].tokens_per_second, preset[i].tokens_per_second, 1e-9 * preset[i].tokens_per_second) << i;
}

TEST(Estimate, TakesOpBenchResultsAsACurve) {
  const std::vector<std::string> more = {"--rest-ms", "7", "--budget", "8", "--block", "8", "--accepted", "4"};
  const auto of = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), more.begin(), more.end());
    return estimate(arguments)[1];
  };
  // 60 layers of 58.4 µs on a rank of 8, 373 µs whole
  EXPECT_NEAR(of({"--curve", kH200 + "experts-kimi-k2.6-tp8.json"}).experts_ms, 60 * 0.0584, 0.03 * 60 * 0.0584);
  EXPECT_NEAR(of({"--curve", kH200 + "experts-kimi-k2.6.json"}).experts_ms, 60 * 0.3733, 0.03 * 60 * 0.3733);
  EXPECT_GT(of({"--curve", kH200 + "experts-kimi-k2.6.json", "--sustained"}).experts_ms,
            of({"--curve", kH200 + "experts-kimi-k2.6.json"}).experts_ms);
}

// The spread from card to card is 2 %.
TEST(Estimate, ShippedH200CurvesAreThoseOfBenchResults) {
  for (const CurveTimes times : {CurveTimes::kBurst, CurveTimes::kSustained}) {
    const Preset preset = *find_preset("h200", times);
    for (const auto& [tp, file] :
         {std::pair{1, "experts-kimi-k2.6.json"}, std::pair{8, "experts-kimi-k2.6-tp8.json"}}) {
      const CostCurve& shipped = curve_for(preset.curves, 2048, tp);
      EXPECT_TRUE(check_curve(shipped, "shipped").ok());
      EXPECT_EQ(shipped.shape.inter, 2048 / tp);
      const Result<CostCurve> measured = parse_curve(text_of(kH200 + file), file, times);
      ASSERT_TRUE(measured.ok()) << measured.error().message;
      for (const CurvePoint& p : shipped.points)
        EXPECT_NEAR(layer_ms(*measured, p.rows, Interpolation::kLogLog), p.layer_ms, 0.03 * p.layer_ms) << p.rows;
    }
  }
}

TEST(Estimate, PicksTheCurveMeasuredForTheRanks) {
  EXPECT_NEAR(estimate({"--preset", "h200"})[0].experts_ms, 60 * 0.0169, 0.01);
  EXPECT_NEAR(estimate({"--preset", "h200", "--tp", "4"})[0].experts_ms, 60 * 0.0553 / 4, 0.01);
}

TEST(Estimate, NamedParametersHaveTheirEffect) {
  const std::vector<std::string> base = {"--preset", "b300", "--budget", "32", "--block", "16", "--accepted", "12"};
  const auto drafted = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return estimate(more)[1];
  };
  const Speed s = drafted({});
  EXPECT_NEAR(drafted({"--drafter-scaling", "1"}).rest_ms, s.rest_ms / 1.25, 1e-9);
  EXPECT_NEAR(drafted({"--bandwidth", "4"}).experts_ms, 2 * s.experts_ms, 1e-9);
  EXPECT_NEAR(drafted({"--layers", "30"}).experts_ms, s.experts_ms / 2, 1e-9);
  EXPECT_NEAR(drafted({"--tp", "4"}).experts_ms, s.experts_ms * 2, 1e-9);
  EXPECT_NEAR(drafted({"--rest-factor", "2"}).rest_ms, s.rest_ms * 2, 1e-9);
  EXPECT_NEAR(drafted({"--interpolation", "linear"}).experts_ms, (3.171 + (5.19 - 3.171) / 58) * 7.5 * 0.225, 1e-9);
  EXPECT_NEAR(drafted({"--drafted-ratio", "1", "--drafter-scaling", "1"}).rest_ms, 1000.0 / 133 - 0.151 * 7.5 * 0.225,
              1e-9);
  EXPECT_EQ(drafted({"--streams", "4"}).rows, 132);
  EXPECT_EQ(estimate({"--preset", "b300", "--block", "8"})[1].rows, 9);
}

TEST(Estimate, SaysWhereDraftingDoesNotPay) {
  const Ran ran =
      run_program({"estimate", "--json", "--curve", kCurves + "rtx-pro-6000.json", "--rest-ms", "1,2", "--streams", "4",
                   "--budget", "64", "--block", "8", "--accepted", "1.5", "--rest-factor", "1"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const JsonDocument document = *parse_json(ran.out, "output");
  const JsonElements steps = *document.root().get("steps")->elements();
  std::vector<double> of_plain;
  for (const JsonValue step : steps) {
    const JsonElements speeds = *step.get("speeds")->elements();
    of_plain.push_back(*(*speeds.begin()).get_double("of_plain"));
  }
  ASSERT_EQ(of_plain.size(), 2u);
  EXPECT_DOUBLE_EQ(of_plain[0], 1);
  // 4 rows on the line from 0.151 to 1.18 ms, 260 rows at the flat end, one rank
  const double plain = 60 * 0.151 * std::pow(1.18 / 0.151, std::log(4) / std::log(9)) + 1, drafted = 60 * 7.02 + 2;
  EXPECT_NEAR(of_plain[1], 1.5 * plain / drafted, 0.01);
}

TEST(Estimate, SaysWhenTheCurveEndsBeforeThePlateau) {
  const std::string curve = temporary_file(
      "short.json", R"({"machine":"x","bandwidth_tbps":1,"shape":{"experts":384,"hidden":7168,"inter":2048,"top_k":8},)"
                    R"("points":[{"rows":1,"layer_ms":1},{"rows":100,"layer_ms":9}]})");
  const Ran ran = run_program({"estimate", "--curve", curve, "--rest-ms", "7"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("the curve, 1 to 100 rows, does not reach across it"));
}

TEST(Estimate, APresetsStreamsGiveWayToTheBudget) {
  for (const Speed& s : estimate({"--preset", "rtx-pro-6000", "--budget", "255"})) EXPECT_EQ(s.streams, 1);
}

TEST(Estimate, AGivenRestIsThatOfOneStream) {
  const std::vector<std::string> base = {
      "--curve",  kH200 + "experts-kimi-k2.6-tp8.json", "--rest-ms", "7,12", "--block", "8", "--accepted", "4",
      "--streams"};
  const auto band = [&](const char* streams) {
    std::vector<std::string> arguments = base;
    arguments.push_back(streams);
    const Speed s = estimate(arguments)[1];
    return s.high / s.tokens_per_second - 1;
  };
  EXPECT_LT(band("1"), 0.01);
  EXPECT_GT(band("4"), 0.1);
}

struct Refused {
  std::vector<std::string> arguments;
  std::string says;
};

TEST(Estimate, RefusesImpossibleOptions) {
  const std::string curve = kCurves + "rtx-pro-6000.json";
  const std::vector<Refused> refusals = {
      {{}, "--preset"},
      {{"--preset", "tpu"}, "b300, h200 or rtx-pro-6000"},
      {{"--preset", "b300", "--budget", "0"}, "--budget 0"},
      {{"--preset", "b300", "--budget", "256"}, "--budget 256"},
      {{"--preset", "b300", "--budget", "-1"}, "--budget -1"},
      {{"--preset", "b300", "--block", "1"}, "--block 1"},
      {{"--preset", "b300", "--block", "18"}, "--block 18"},
      {{"--preset", "b300", "--streams", "0"}, "--streams 0"},
      {{"--preset", "b300", "--streams", "2000"}, "--streams 2000"},
      {{"--preset", "b300", "--streams", "32", "--budget", "64"}, "2080 rows"},
      {{"--preset", "b300", "--tp", "3"}, "--tp 3"},
      {{"--preset", "b300", "--tp", "0"}, "--tp 0"},
      {{"--preset", "b300", "--tp", "128"}, "--tp 128"},
      {{"--preset", "b300", "--tp", "2147483647"}, "--tp 2147483647"},
      {{"--preset", "b300", "--bandwidth", "nan"}, "--bandwidth nan"},
      {{"--preset", "b300", "--bandwidth", "inf"}, "--bandwidth inf"},
      {{"--preset", "b300", "--bandwidth", "0"}, "--bandwidth 0"},
      {{"--preset", "b300", "--bandwidth", "-8"}, "--bandwidth -8"},
      {{"--preset", "b300", "--accepted", "nan"}, "--accepted nan"},
      {{"--preset", "b300", "--accepted", "0.5"}, "--accepted 0.5"},
      {{"--preset", "b300", "--accepted", "17"}, "--accepted 17"},
      {{"--preset", "b300", "--block", "8", "--accepted", "9"}, "--accepted 9"},
      {{"--preset", "b300", "--budget", "3", "--accepted", "5"}, "1 to 4"},
      {{"--preset", "b300", "--budget", "2"}, "--accepted"},
      {{"--preset", "b300", "--rest-factor", "0"}, "--rest-factor 0"},
      {{"--preset", "b300", "--rest-factor", "nan"}, "--rest-factor nan"},
      {{"--preset", "b300", "--rest-ms", "nan"}, "--rest-ms nan"},
      {{"--preset", "b300", "--rest-ms", "1,-2"}, "--rest-ms -2"},
      {{"--preset", "b300", "--rest-ms", "1,2,3"}, "--rest-ms"},
      {{"--preset", "b300", "--rest-ms", "1,2", "--drafted-ratio", "2"}, "--drafted-ratio"},
      {{"--preset", "b300", "--rest-ms", "1", "--baseline", "1:100"}, "--baseline"},
      {{"--preset", "b300", "--drafter-scaling", "inf"}, "--drafter-scaling inf"},
      {{"--preset", "b300", "--drafted-ratio", "0"}, "--drafted-ratio 0"},
      {{"--preset", "b300", "--layers", "0"}, "--layers 0"},
      {{"--preset", "b300", "--inter", "3000"}, "--inter 3000"},
      {{"--preset", "b300", "--interpolation", "cubic"}, "--interpolation cubic"},
      {{"--preset", "b300", "--sustained"}, "--sustained"},
      {{"--preset", "b300", "--baseline", "138"}, "STREAMS:TOKENS_PER_SECOND"},
      {{"--preset", "b300", "--baseline", "1:nan"}, "nan"},
      {{"--preset", "b300", "--baseline", "1:138x"}, "STREAMS:TOKENS_PER_SECOND"},
      {{"--preset", "b300", "--baseline", "1:"}, "STREAMS:TOKENS_PER_SECOND"},
      {{"--preset", "b300", "--drafted-baseline", "1:8:8:4.4:303"}, "--baseline"},
      {{"--preset", "b300", "--baseline", "1:133", "--drafted-baseline", "1:8:8:4.4"}, "STREAMS:BLOCK:BUDGET"},
      {{"--preset", "b300", "--baseline", "1:133", "--drafted-baseline", "1:8:0:1:303"}, "--budget 0"},
      {{"--preset", "b300", "--baseline", "1:133", "--drafted-baseline", "1:8:8:9:303"}, "--accepted 9"},
      {{"--preset", "b300", "--baseline", "1:133", "--drafted-baseline", "1:8:8:nan:303"}, "--accepted nan"},
      {{"--preset", "b300", "--baseline", "1:133", "--drafted-baseline", "1:8:8:4.4:99999"}, "leaves nothing"},
      {{"--preset", "b300", "--baseline", "0:138"}, "--streams 0"},
      {{"--preset", "b300", "--baseline", "99999999999:138"}, "STREAMS:TOKENS_PER_SECOND"},
      {{"--preset", "b300", "--baseline", "10:517,1:138"}, "ascending"},
      {{"--preset", "b300", "--baseline", "1:100000"}, "leaves nothing"},
      {{"--curve", curve}, "--rest-ms"},
      {{"--curve", curve, "--rest-ms", "7", "--sustained"}, "sustained_ms"},
      {{"--curve", testing::TempDir(), "--rest-ms", "7"}, "directory"},
  };
  for (const Refused& r : refusals) {
    std::vector<std::string> arguments = {"estimate"};
    arguments.insert(arguments.end(), r.arguments.begin(), r.arguments.end());
    const Ran ran = run_program(arguments);
    EXPECT_EQ(ran.status, 2) << testing::PrintToString(r.arguments) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(r.says)) << testing::PrintToString(r.arguments);
    EXPECT_EQ(ran.out, "");
  }
}

TEST(Estimate, RefusesBadCurveFiles) {
  const std::string good = text_of(kCurves + "rtx-pro-6000.json");
  const auto refusal = [](const std::string& text) {
    const Result<CostCurve> curve = parse_curve(text, "c.json", CurveTimes::kBurst);
    return curve.ok() ? std::string("accepted") : curve.error().message;
  };
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    return refusal(text);
  };
  EXPECT_EQ(refusal(good), "accepted");
  EXPECT_THAT(refusal(""), HasSubstr("c.json"));
  EXPECT_THAT(refusal("[]"), HasSubstr("must be an object"));
  EXPECT_THAT(with("\"machine\"", "\"machin\""), HasSubstr("machine"));
  EXPECT_THAT(with("\"RTX PRO 6000\"", "7"), HasSubstr("machine"));
  EXPECT_THAT(with("\"bandwidth_tbps\": 1.8", "\"bandwidth_tbps\": 0"), HasSubstr("bandwidth"));
  EXPECT_THAT(with("\"bandwidth_tbps\": 1.8", "\"bandwidth_tbps\": -1.8"), HasSubstr("bandwidth"));
  EXPECT_THAT(with("\"bandwidth_tbps\": 1.8", "\"bandwidth_tbps\": 1e999"), HasSubstr("c.json"));
  EXPECT_THAT(with("\"bandwidth_tbps\": 1.8", "\"bandwidth_tbps\": NaN"), HasSubstr("c.json"));
  EXPECT_THAT(with("\"experts\": 384", "\"experts\": 0"), HasSubstr("shape.experts"));
  EXPECT_THAT(with("\"experts\": 384", "\"experts\": 99999999999"), HasSubstr("shape.experts"));
  EXPECT_THAT(with("\"inter\": 2048", "\"inter\": 2047"), HasSubstr("2047"));
  EXPECT_THAT(with("\"top_k\": 8", "\"top_k\": 8.5"), HasSubstr("shape.top_k"));
  EXPECT_THAT(with("\"top_k\": 8", "\"top_k\": 400"), HasSubstr("top_k"));
  EXPECT_THAT(with("\"rows\": 9,", "\"rows\": 1,"), HasSubstr("points[1]: rows 1 after 1"));
  EXPECT_THAT(with("\"rows\": 9,", "\"rows\": 40,"), HasSubstr("points[2]: rows 32 after 40"));
  EXPECT_THAT(with("\"rows\": 9,", "\"rows\": 0,"), HasSubstr("points[1].rows"));
  EXPECT_THAT(with("\"layer_ms\": 1.18", "\"layer_ms\": 0"), HasSubstr("points[1]: the layer's time"));
  EXPECT_THAT(with("\"layer_ms\": 1.18", "\"layer_ms\": \"1.18\""), HasSubstr("points[1].layer_ms"));
  EXPECT_THAT(with("\"layer_ms\": 1.18", "\"layer_us\": 1180"), HasSubstr("layer_ms"));
  EXPECT_THAT(with("\"points\"", "\"point\""), HasSubstr("points"));
  EXPECT_THAT(with("RTX PRO 6000", "RTX\\u001b[2J"), HasSubstr("machine"));
  EXPECT_THAT(with("RTX PRO 6000", ""), HasSubstr("machine"));
  EXPECT_THAT(with("RTX PRO 6000", std::string(201, 'x')), HasSubstr("machine"));
  EXPECT_THAT(refusal(good.substr(0, good.size() / 2)), HasSubstr("c.json"));
  EXPECT_THAT(refusal("{\"verb\":\"attend\"}"), HasSubstr("experts"));
  EXPECT_THAT(refusal("{\"verb\":\"experts\",\"device\":\"x\",\"read_ceiling_gbps\":0}"), HasSubstr("experts"));
}

// Whatever a byte of the file becomes, it is refused or it is a curve that yields numbers.
TEST(Estimate, AChangedCurveFileIsRefusedOrStillACurve) {
  const std::string good = text_of(kCurves + "rtx-pro-6000.json");
  for (size_t i = 0; i < good.size(); ++i)
    for (const char c : {'\0', '"', '-', '0', '9', 'e', ',', '}', '\xff'}) {
      std::string text = good;
      text[i] = c;
      const Result<CostCurve> curve = parse_curve(text, "c.json", CurveTimes::kBurst);
      if (!curve.ok()) continue;
      for (const CurvePoint& p : curve->points) {
        EXPECT_TRUE(std::isfinite(layer_ms(*curve, p.rows, Interpolation::kLogLog)));
        EXPECT_TRUE(std::isfinite(bandwidth_use(*curve, p, true)));
      }
    }
}

}  // namespace
}  // namespace ddtree
