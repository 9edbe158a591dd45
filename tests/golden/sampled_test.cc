// Sampled text is a function of the request alone: the same in every mode, budget and batch; and rules that look at the
// text so far act along each node's own path.

#include <gtest/gtest.h>

#include <cmath>

#include "golden/demo.h"

namespace ddtree {
namespace {

struct Rule {
  std::string name;
  SamplingParams sampling;
};

std::vector<Rule> rules() {
  std::vector<Rule> out;
  const auto add = [&](std::string name, auto change) {
    SamplingParams s;
    s.seed = 1234;
    change(s);
    out.push_back({std::move(name), s});
  };
  add("temperature 1", [](SamplingParams& s) { s.temperature = 1; });
  add("temperature 0.7, top-p 0.9", [](SamplingParams& s) { s.temperature = 0.7f, s.top_p = 0.9f; });
  add("top-k 5, another seed", [](SamplingParams& s) { s.temperature = 1, s.top_k = 5, s.seed = 99; });
  add("min-p 0.1", [](SamplingParams& s) { s.temperature = 1.3f, s.min_p = 0.1f; });
  add("greedy with penalties",
      [](SamplingParams& s) { s.repetition_penalty = 1.2f, s.presence_penalty = 0.4f, s.frequency_penalty = 0.3f; });
  add("sampled with penalties",
      [](SamplingParams& s) { s.temperature = 0.8f, s.repetition_penalty = 1.1f, s.frequency_penalty = 0.5f; });
  add("bias", [](SamplingParams& s) { s.logit_bias = {{10, 3.0f}, {257, -100.0f}}; });
  add("bad words", [](SamplingParams& s) { s.bad_words = {{257, 10}, {307}, {10, 10}}; });
  add("log-probabilities", [](SamplingParams& s) { s.logprobs = 5; });
  return out;
}

Request request_of(int prompt, const Rule& rule, const SpecOptions& spec, int choice = 0) {
  Request request = greedy_request(golden_prompt(prompt), 48, spec);
  request.sampling = rule.sampling;
  request.choice = choice;
  return request;
}

void expect_same(const Decoded& a, const Decoded& b, const std::string& what) {
  EXPECT_EQ(a.ids(), b.ids()) << what;
  ASSERT_EQ(a.tokens.size(), b.tokens.size());
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    ASSERT_EQ(a.tokens[i].logprobs.size(), b.tokens[i].logprobs.size());
    for (size_t j = 0; j < a.tokens[i].logprobs.size(); ++j) {
      EXPECT_EQ(a.tokens[i].logprobs[j].id, b.tokens[i].logprobs[j].id);
      EXPECT_EQ(a.tokens[i].logprobs[j].logprob, b.tokens[i].logprobs[j].logprob);
    }
  }
}

TEST(Sampled, TextIsTheSameInEveryModeBudgetAndBatch) {
  DemoPair& pair = DemoPair::on("cpu");
  const auto one = pair.engine(1), many = pair.engine(16);
  const std::vector<int> prompts = {0, 2, 5};
  for (const Rule& rule : rules()) {
    std::vector<Decoded> plain;
    for (int p : prompts) plain.push_back(decode(*one, request_of(p, rule, {SpecMode::kOff, 0, false})));
    for (const SpecOptions& spec :
         {SpecOptions{SpecMode::kChain, 7, false}, {SpecMode::kTree, 8, false}, {SpecMode::kTree, 64, false}}) {
      std::vector<Request> batch;
      for (int p : prompts) batch.push_back(request_of(p, rule, spec));
      for (int i = 3; i < 9; ++i)
        batch.push_back(request_of(i, rules()[i % rules().size()], spec, i));  // other company
      const std::vector<Decoded> results = decode(*many, std::move(batch), 9);
      for (size_t i = 0; i < prompts.size(); ++i)
        expect_same(results[i], plain[i], rule.name + ", budget " + std::to_string(spec.budget));
    }
  }
}

TEST(Sampled, SeedsAndChoicesGiveDifferentTexts) {
  const auto engine = DemoPair::on("cpu").engine(1);
  Rule rule = rules()[0];
  const std::vector<int32_t> text = decode(*engine, request_of(5, rule, {})).ids();
  EXPECT_EQ(decode(*engine, request_of(5, rule, {})).ids(), text);
  EXPECT_NE(decode(*engine, request_of(5, rule, {}, 1)).ids(), text);
  rule.sampling.seed = 5678;
  EXPECT_NE(decode(*engine, request_of(5, rule, {})).ids(), text);
}

// Log-probabilities against the golden logits: the greedy token's is its logit minus their log-sum-exp.
TEST(Sampled, LogProbabilitiesAreTheTargets) {
  const auto engine = DemoPair::on("cpu").engine(1);
  Rule rule{"", {}};
  rule.sampling.logprobs = 3;
  const Decoded decoded = decode(*engine, request_of(5, rule, {SpecMode::kTree, 16, false}));
  const std::vector<float> logits = golden_floats("p5.prompt_logits");
  double sum = 0;
  for (float v : logits) sum += std::exp(static_cast<double>(v));
  const TokenLogprob& own = decoded.tokens[0].logprobs[0];
  EXPECT_EQ(own.id, golden_greedy(5)[0]);
  EXPECT_NEAR(own.logprob, logits[own.id] - std::log(sum), 1e-4);
  EXPECT_EQ(decoded.tokens[0].logprobs.size(), 4u);  // its own and three
  std::vector<int32_t> expected = golden_greedy(5);
  expected.resize(48);
  EXPECT_EQ(decoded.ids(), expected);
}

TEST(Sampled, BadWordsAndMinTokensHoldInsideAnAcceptedPath) {
  const auto engine = DemoPair::on("cpu").engine(1);
  const std::vector<int32_t> golden = golden_greedy(2);  // a loop: every token of it occurs again and again
  std::pair<std::vector<int32_t>, std::vector<int32_t>> plain;
  for (SpecMode mode : {SpecMode::kOff, SpecMode::kTree}) {
    Request request = greedy_request(golden_prompt(2), 48, {mode, 32, false});
    request.sampling.bad_words = {{golden[5], golden[6]}};
    const std::vector<int32_t> ids = decode(*engine, std::move(request)).ids();
    for (size_t i = 1; i < ids.size(); ++i) EXPECT_FALSE(ids[i - 1] == golden[5] && ids[i] == golden[6]);
    Request early = greedy_request(golden_prompt(2), 48, {mode, 32, false});
    early.stop_ids = {golden[3]};
    early.sampling.min_tokens = 20;
    const std::vector<int32_t> later = decode(*engine, std::move(early)).ids();
    if (mode == SpecMode::kOff) plain = {ids, later};
    EXPECT_EQ(ids, plain.first);
    EXPECT_EQ(later, plain.second);
    for (size_t i = 0; i < 20 && i < later.size(); ++i) EXPECT_NE(later[i], golden[3]);
    EXPECT_GE(later.size(), 20u);
  }
}

}  // namespace
}  // namespace ddtree
