// After any accepted path the engine's state is that of a fresh prefill of the same text, bit for bit: the target's
// logits, and what the drafter proposes from its context.

#include <gtest/gtest.h>

#include "backend/registry.h"
#include "golden/demo.h"

namespace ddtree {
namespace {

bool off_the_spine(const StepRecord& record) {
  for (int16_t row : record.path)
    if (record.tree.rank[row] > 0) return true;
  return false;
}

std::vector<uint64_t> hashes(const Decoded& decoded) {
  std::vector<uint64_t> out;
  for (const OutputToken& token : decoded.tokens) out.push_back(token.row_hash);
  return out;
}

// The first pass of a new engine whose prompt is everything before the root.
StepRecord fresh_pass(EngineCore& engine, std::vector<int32_t> text, int32_t root, const SpecOptions& spec) {
  Request request = greedy_request(std::move(text), 40, spec);  // as many as keep the tree's depth whole
  request.trace = true;
  Decoded decoded = decode(engine, std::move(request));
  EXPECT_EQ(decoded.tokens[0].id, root);
  return decoded.trace.at(0);
}

TEST(State, AfterAnOffSpineAcceptanceEqualsAFreshPrefill) {
  DemoPair& pair = DemoPair::on("cpu");
  const auto engine = pair.engine(1), fresh = pair.engine(1);
  const SpecOptions spec = {SpecMode::kTree, 48, false};
  int compared = 0;
  for (int p : {1, 4, 6, 9}) {
    Request request = greedy_request(golden_prompt(p), 120, spec);
    request.trace = true;
    const Decoded decoded = decode(*engine, std::move(request));
    std::vector<int32_t> text = golden_prompt(p);
    for (const OutputToken& token : decoded.tokens) text.push_back(token.id);
    int taken = 0;
    for (size_t i = 1; i + 4 < decoded.trace.size() && taken < 4; ++i) {
      if (!off_the_spine(decoded.trace[i - 1])) continue;
      const StepRecord& record = decoded.trace[i];
      const StepRecord again =
          fresh_pass(*fresh, {text.begin(), text.begin() + record.position}, record.tree.token[0], spec);
      EXPECT_EQ(again.candidates.top_value, record.candidates.top_value) << "prompt " << p << " pass " << i;
      EXPECT_EQ(again.candidates.top_id, record.candidates.top_id);
      EXPECT_EQ(again.candidates.lse, record.candidates.lse);
      EXPECT_EQ(again.path, record.path);
      EXPECT_EQ(again.next, record.next);
      ++taken, ++compared;
    }
  }
  EXPECT_GE(compared, 12);
}

TEST(State, EveryRowsLogitsAreThoseOfPlainDecoding) {
  DemoPair& pair = DemoPair::on("cpu");
  const auto one = pair.engine(1), many = pair.engine(16);
  std::vector<Decoded> plain;
  for (int p = 0; p < kGoldenPrompts; ++p)
    plain.push_back(decode(*one, greedy_request(golden_prompt(p), 64, {SpecMode::kOff, 0, false})));
  for (const SpecOptions& spec :
       {SpecOptions{SpecMode::kChain, 15, false}, {SpecMode::kTree, 33, false}, {SpecMode::kTree, 128, true}}) {
    std::vector<Request> requests;
    for (int p = 0; p < kGoldenPrompts; ++p) requests.push_back(greedy_request(golden_prompt(p), 64, spec));
    const std::vector<Decoded> results = decode(*many, std::move(requests), 16);
    for (int p = 0; p < kGoldenPrompts; ++p) {
      EXPECT_EQ(hashes(results[p]), hashes(plain[p])) << "prompt " << p << " budget " << spec.budget;
      EXPECT_EQ(results[p].stats.logits_hash, plain[p].stats.logits_hash);
    }
  }
}

// A cache too small for its streams: they are preempted and computed again, to the same bits.
TEST(State, SurvivesPreemption) {
  DemoPair& pair = DemoPair::on("cpu");
  const auto engine = pair.engine(6, 16);  // 1024 rows
  std::vector<Request> requests;
  const std::vector<int> prompts = {5, 6, 7, 8, 4, 3, 2, 1};
  for (int p : prompts)
    requests.push_back(greedy_request(golden_prompt(p), kGoldenTokens, {SpecMode::kTree, 16, false}));
  const std::vector<Decoded> results = decode(*engine, std::move(requests), 6);
  int preemptions = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(results[i].ids(), golden_greedy(prompts[i])) << "prompt " << prompts[i];
    preemptions += results[i].stats.preemptions;
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(engine->free_pages(), engine->pages());
}

// A request whose beginning is cached gives the same text from the same logits, accepting the same drafts.
TEST(State, AKnownBeginningChangesNothing) {
  DemoPair& pair = DemoPair::on("cpu");
  const auto fresh = pair.engine(1), sharing = pair.engine(4, 200, true, true);
  int compared = 0;
  for (int p = 0; p < kGoldenPrompts; ++p) {
    std::vector<int32_t> text = golden_prompt(p);
    const std::vector<int32_t> answer = golden_greedy(p);
    text.insert(text.end(), answer.begin(), answer.begin() + 96);  // a second turn
    if (text.size() + 64 > 1024) continue;
    const SpecOptions spec = {SpecMode::kTree, 24, false};
    decode(*sharing, greedy_request(golden_prompt(p), 90, spec));
    const Decoded want = decode(*fresh, greedy_request(text, 64, spec));
    std::vector<Request> twice(2, greedy_request(text, 64, spec));
    for (const Decoded& got : decode(*sharing, std::move(twice), 2)) {
      compared += got.stats.cached_tokens > 0;
      EXPECT_EQ(got.ids(), want.ids()) << "prompt " << p;
      EXPECT_EQ(hashes(got), hashes(want)) << "prompt " << p;
      EXPECT_EQ(got.stats.accepted_histogram, want.stats.accepted_histogram) << "prompt " << p;
    }
  }
  EXPECT_GE(compared, 12);
}

TEST(State, DoesNotDependOnTheNumberOfThreads) {
  std::vector<uint64_t> first;
  for (int threads : {1, 2, 3}) {
    const auto backend = *make_backend({"cpu", threads, "auto"});
    LoadedModel model =
        load_model(*backend, *locate_model(DDTREE_SOURCE_DIR "/models/demo", "auto"), {1088, 1, 512}).operator*();
    EngineOptions options;
    options.scheduler.max_streams = 1;
    options.max_context = 1024;
    const auto engine = *EngineCore::create(*backend, *model.decoder, model.drafter.get(), options);
    const Decoded decoded = decode(*engine, greedy_request(golden_prompt(7), 48, {SpecMode::kTree, 32, false}));
    if (first.empty()) first = hashes(decoded);
    EXPECT_EQ(hashes(decoded), first) << threads << " threads";
  }
}

}  // namespace
}  // namespace ddtree
