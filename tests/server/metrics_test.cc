// /metrics as a strict reader of the text format sees it.

#include "server/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "server/raw_client.h"
#include "server/server_metrics.h"

namespace ddtree {
namespace {

// Reads the format as its description has it: HELP and TYPE once and before the samples of a family, samples of a
// family together, no sample twice, and histograms whose buckets add up.
class Scrape {
 public:
  explicit Scrape(const std::string& text) {
    EXPECT_TRUE(text.ends_with('\n'));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) read(line);
    for (const auto& [name, type] : types_)
      if (type == "histogram") check_histogram(name);
  }
  double value(const std::string& sample) const {
    const auto found = samples_.find(sample);
    EXPECT_NE(found, samples_.end()) << sample;
    return found == samples_.end() ? std::nan("") : found->second;
  }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const auto& [name, value] : samples_) names.insert(name);
    return names;
  }

 private:
  void read(const std::string& line) {
    static const std::regex help(R"(# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) \S.*)");
    static const std::regex type(R"(# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram))");
    static const std::regex sample(
        R"re(([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="(?:[^"\\]|\\[\\"n])*"(?:,[a-zA-Z_]\w*="(?:[^"\\]|\\[\\"n])*")*\})? (\S+))re");
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      EXPECT_TRUE(helped_.insert(match[1]).second) << line;
    } else if (std::regex_match(line, match, type)) {
      EXPECT_EQ(helped_.count(match[1]), 1u) << line;
      EXPECT_TRUE(types_.emplace(match[1], match[2]).second) << line;
      family_ = match[1];
    } else {
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      const std::string name = match[1];
      const bool own =
          name == family_ || (types_[family_] == "histogram" &&
                              (name == family_ + "_bucket" || name == family_ + "_sum" || name == family_ + "_count"));
      EXPECT_TRUE(own) << line;
      EXPECT_TRUE(types_[family_] != "counter" || name.ends_with("_total")) << line;
      EXPECT_TRUE(samples_.emplace(name + match[2].str(), std::stod(match[3])).second) << line;
      if (name == family_ + "_bucket")
        buckets_[family_].push_back({std::stod(match[2].str().substr(5)), std::stod(match[3])});
    }
  }
  void check_histogram(const std::string& name) {
    double bound = -1, count = 0;
    for (const auto& [le, below] : buckets_[name]) {
      EXPECT_GT(le, bound) << name;
      EXPECT_GE(below, count) << name;
      bound = le;
      count = below;
    }
    EXPECT_EQ(bound, std::numeric_limits<double>::infinity()) << name;
    EXPECT_EQ(count, value(name + "_count")) << name;
    value(name + "_sum");
  }

  std::string family_;
  std::set<std::string> helped_;
  std::map<std::string, std::string> types_;
  std::map<std::string, double> samples_;
  std::map<std::string, std::vector<std::pair<double, double>>> buckets_;
};

GenerationReport report() {
  GenerationReport report;
  report.outcome = "stop";
  report.usage = {100, 64, 12, 0};
  report.timings.prompt_ms = 30;
  report.timings.predicted_ms = 400;
  RequestStats& stats = report.timings.stats;
  stats.steps = 5;
  stats.committed = 11;
  stats.drafted = 80;
  stats.trimmed = 1;
  stats.accepted_histogram[1] = 2;
  stats.accepted_histogram[3] = 3;
  stats.accepted_at_depth[1] = 3;
  stats.accepted_at_depth[2] = 3;
  stats.accepted_at_rank[0] = 5;
  stats.accepted_at_rank[2] = 1;
  return report;
}

TEST(Histogram, CountsByUpperBounds) {
  Histogram histogram({1, 2, 5});
  for (const double value : {0.5, 1.0, 1.5, 5.0, 6.0}) histogram.add(value);
  histogram.add(2, 10);
  EXPECT_EQ(histogram.counts(), (std::vector<int64_t>{2, 11, 1, 1}));
  EXPECT_DOUBLE_EQ(histogram.sum(), 34);
  EXPECT_EQ(bounds_of_two(8), (std::vector<double>{1, 2, 4, 8}));
  EXPECT_EQ(bounds_1_2_5(1, 100), (std::vector<double>{1, 2, 5, 10, 20, 50, 100}));
}

TEST(MetricsText, EscapesAndKeepsDigits) {
  MetricsText out;
  out.family("a_total", "counter", "Help.").sample({{"x", "q\"b\\n\n"}}, 9007199254740991.0);
  out.gauge("b", "Help.", 0.25);
  EXPECT_EQ(std::move(out).text(),
            "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"q\\\"b\\\\n\\n\"} 9007199254740991\n"
            "# HELP b Help.\n# TYPE b gauge\nb 0.25\n");
}

TEST(ServerMetrics, AnEmptyServersTextIsValid) {
  const ServerMetrics metrics;
  const Scrape scrape(metrics.text({{}, "loading", "1.2.3", "none"}));
  EXPECT_EQ(scrape.value("ddtree_engine_state{state=\"loading\"}"), 1);
  EXPECT_EQ(scrape.value("ddtree_engine_state{state=\"ready\"}"), 0);
  EXPECT_EQ(scrape.value("ddtree_build_info{version=\"1.2.3\",backend=\"none\"}"), 1);
  EXPECT_GT(scrape.value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GE(scrape.value("process_open_fds"), 3);
}

TEST(ServerMetrics, CountsWhatItIsTold) {
  ServerMetrics metrics;
  metrics.on_end(report());
  metrics.on_end(report());
  GenerationReport plain;
  plain.outcome = "length";
  plain.usage = {1, 0, 1, 0};
  plain.timings.stats.steps = 7;
  metrics.on_end(plain);
  metrics.on_first_token(0.03);
  metrics.on_step(0.01, 3);
  EngineLoad load;
  load.running = 2;
  load.waiting = 3;
  load.pages = 10;
  load.unused_pages = 4;
  load.totals.steps = 9;
  load.totals.phase_ms[static_cast<size_t>(Phase::kExperts)] = 1500;
  const Scrape scrape(metrics.text({load, "ready", "1", "cpu"}));
  EXPECT_EQ(scrape.value("ddtree_request_finish_total{reason=\"stop\"}"), 2);
  EXPECT_EQ(scrape.value("ddtree_request_finish_total{reason=\"length\"}"), 1);
  EXPECT_EQ(scrape.value("ddtree_prompt_tokens_total"), 201);
  EXPECT_EQ(scrape.value("ddtree_prompt_tokens_cached_total"), 128);
  EXPECT_EQ(scrape.value("ddtree_generation_tokens_total"), 25);
  EXPECT_EQ(scrape.value("ddtree_requests_running"), 2);
  EXPECT_EQ(scrape.value("ddtree_requests_waiting"), 3);
  EXPECT_EQ(scrape.value("ddtree_kv_pages_used"), 6);
  EXPECT_EQ(scrape.value("ddtree_steps_total"), 9);
  EXPECT_EQ(scrape.value("ddtree_step_seconds_total{phase=\"experts\"}"), 1.5);
  EXPECT_EQ(scrape.value("ddtree_time_to_first_token_seconds_bucket{le=\"0.05\"}"), 1);
  EXPECT_EQ(scrape.value("ddtree_time_to_first_token_seconds_bucket{le=\"0.02\"}"), 0);
  EXPECT_EQ(scrape.value("ddtree_step_tokens_bucket{le=\"3\"}"), 1);
  // Requests without a drafted node count in none of these.
  EXPECT_EQ(scrape.value("ddtree_spec_steps_total"), 10);
  EXPECT_EQ(scrape.value("ddtree_spec_draft_tokens_total"), 160);
  EXPECT_EQ(scrape.value("ddtree_spec_accepted_tokens_total"), 12);
  EXPECT_EQ(scrape.value("ddtree_spec_off_requests_total"), 1);
  EXPECT_EQ(scrape.value("ddtree_spec_accepted_at_depth_total{depth=\"2\"}"), 6);
  EXPECT_EQ(scrape.value("ddtree_spec_accepted_at_rank_total{rank=\"2\"}"), 2);
  EXPECT_EQ(scrape.value("ddtree_spec_accept_length_count"), 10);
  EXPECT_EQ(scrape.value("ddtree_spec_accept_length_sum"), 22);
  // 1 + accepted ÷ drafts, as clients reckon, is the accepted length: 22 tokens ÷ 10 passes.
  EXPECT_DOUBLE_EQ(1 + scrape.value("vllm:spec_decode_num_accepted_tokens_total") /
                           scrape.value("vllm:spec_decode_num_drafts_total"),
                   2.2);
  EXPECT_EQ(scrape.value("vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}"), 6);
  EXPECT_EQ(scrape.value("vllm:spec_decode_num_draft_tokens_total"), 160);
}

// Whatever clients send, the families and labels stay the same few.
TEST(ServerMetrics, ClientsChooseNoLabels) {
  ToyServer toy;
  for (int i = 0; i < 50; ++i) {
    RawClient client(toy.port());
    client.send(get("/path-" + std::to_string(i)));
    EXPECT_EQ(client.answer().status, 404);
    client.send(get("/items/" + std::to_string(i)));
    EXPECT_EQ(client.answer().status, 200);
  }
  toy.await_done(100);
  ServerMetrics metrics;
  const std::vector<HttpDone> done = toy.done();
  for (const HttpDone& one : done) metrics.on_http(one);
  const Scrape scrape(metrics.text({{}, "ready", "1", "cpu"}));
  EXPECT_EQ(scrape.value("ddtree_requests_total{route=\"other\",status=\"404\"}"), 50);
  EXPECT_EQ(scrape.value("ddtree_requests_total{route=\"/items/*\",status=\"200\"}"), 50);
  int routes = 0;
  for (const std::string& name : scrape.names()) routes += name.starts_with("ddtree_requests_total");
  EXPECT_EQ(routes, 2);
}

}  // namespace
}  // namespace ddtree
