// The engine with a target and a drafter whose text is known in advance.

#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/registry.h"
#include "engine/fake_model.h"

namespace ddtree {
namespace {

struct Result1 {
  std::vector<int32_t> ids;
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;
  RequestStats stats;
  int last_events = 0;
};

class EngineCoreTest : public testing::Test {
 protected:
  static constexpr int kContext = 512;

  std::unique_ptr<EngineCore> engine(int streams, int pages = 0, int eos = -1, int draft_context = 1 << 20) {
    drafter_ = std::make_unique<FakeDrafter>(8, draft_context, 3);
    EngineOptions options;
    options.scheduler = {streams, 64, 256, 64};
    options.max_context = kContext;
    options.cache_tokens = pages > 0 ? pages * kPageRows : kContext * streams;
    if (eos >= 0) options.eos_ids = {eos};
    return *EngineCore::create(*backend_, decoder_, drafter_.get(), options);
  }

  static Request request(std::vector<int32_t> prompt, int tokens, SpecOptions spec = {SpecMode::kTree, 32, false}) {
    Request r;
    r.prompt = std::move(prompt);
    r.max_tokens = tokens;
    r.spec = spec;
    return r;
  }

  static EventSink into(Result1& result) {
    return [&result](Event&& event) {
      EXPECT_EQ(result.finish, FinishReason::kNone) << "an event after the last";
      for (const OutputToken& token : event.tokens) result.ids.push_back(token.id);
      result.finish = event.finish;
      result.error = event.error;
      if (event.stats) result.stats = *event.stats;
      result.last_events += event.finish != FinishReason::kNone;
    };
  }

  Result1 run(EngineCore& engine, Request r) {
    Result1 result;
    EXPECT_TRUE(engine.validate(r).ok());
    EXPECT_TRUE(engine.submit(1, std::move(r), into(result)).ok());
    while (engine.step()) engine.scheduler().check();
    EXPECT_EQ(engine.free_pages(), engine.pages());
    return result;
  }

  std::unique_ptr<Backend> backend_ = *make_backend({"ref", 1, "auto"});
  FakeDecoder decoder_{256};
  std::unique_ptr<FakeDrafter> drafter_;
};

TEST_F(EngineCoreTest, EveryModeAndBudgetGivesTheKnownText) {
  const auto e = engine(1);
  const std::vector<int32_t> prompt = {5, 9, 3};
  for (SpecMode mode : {SpecMode::kOff, SpecMode::kChain, SpecMode::kTree})
    for (int budget : {0, 1, 2, 7, 31, 32, 33, 63, 64, 65, 255}) {
      const Result1 r = run(*e, request(prompt, 100, {mode, budget, false}));
      EXPECT_EQ(r.ids, fake_text(prompt, 100)) << spec_mode_name(mode) << ":" << budget;
      EXPECT_EQ(r.finish, FinishReason::kLength);
    }
}

TEST_F(EngineCoreTest, StatisticsAddUp) {
  const auto e = engine(1);
  const Result1 r = run(*e, request({1, 2}, 200, {SpecMode::kTree, 64, false}));
  const RequestStats& s = r.stats;
  EXPECT_EQ(s.prompt_tokens, 2);
  EXPECT_EQ(s.output_tokens, 200);
  EXPECT_EQ(s.committed + 1,
            s.output_tokens);  // prefill gave the first; depth is bounded, so the last pass gives no more than is left
  EXPECT_GT(s.accepted_length(), 2.0);
  int passes = 0, tokens = 0, by_depth = 0, by_rank = 0;
  for (int n = 0; n < std::ssize(s.accepted_histogram); ++n)
    passes += s.accepted_histogram[n], tokens += n * s.accepted_histogram[n];
  for (int n : s.accepted_at_depth) by_depth += n;
  for (int n : s.accepted_at_rank) by_rank += n;
  EXPECT_EQ(passes, s.steps);
  EXPECT_EQ(tokens, s.committed);
  EXPECT_EQ(by_depth, s.committed - s.steps);
  EXPECT_EQ(by_rank, s.committed - s.steps);
  EXPECT_GT(s.accepted_at_rank[1], 0);  // off the spine
  EXPECT_GT(s.accepted_at_rank[2], 0);
  EXPECT_GE(s.drafted, s.committed - s.steps);
  EXPECT_EQ(s.effective_mode, "tree");
  EXPECT_EQ(s.not_speculating, "");
}

TEST_F(EngineCoreTest, SaysWhyItDoesNotSpeculate) {
  const auto e = engine(1);
  EXPECT_NE(run(*e, request({1}, 4, {SpecMode::kOff, 8, false})).stats.not_speculating, "");
  EXPECT_NE(run(*e, request({1}, 4, {SpecMode::kTree, 0, false})).stats.not_speculating, "");
  const auto short_sighted = engine(1, 0, -1, 64);
  const Result1 r = run(*short_sighted, request({1}, 200));
  EXPECT_EQ(r.ids, fake_text({1}, 200));
  EXPECT_NE(r.stats.not_speculating.find("64"), std::string::npos);
  EXPECT_LT(r.stats.accepted_length(), 2.0);
}

TEST_F(EngineCoreTest, StopsCutInsideAnAcceptedPathAsInPlainDecoding) {
  const std::vector<int32_t> prompt = {11, 4};
  const std::vector<int32_t> text = fake_text(prompt, 120);
  for (int at : {0, 1, 2, 5, 17, 40, 41, 42, 43}) {
    const int end =
        static_cast<int>(std::find(text.begin(), text.end(), text[at]) - text.begin()) + 1;  // its first occurrence
    const auto e = engine(1, 0, text[at]);
    for (SpecMode mode : {SpecMode::kOff, SpecMode::kTree}) {
      const Result1 by_eos = run(*e, request(prompt, 120, {mode, 64, false}));
      EXPECT_EQ(by_eos.ids, std::vector<int32_t>(text.begin(), text.begin() + end));
      EXPECT_EQ(by_eos.finish, FinishReason::kStop);
      EXPECT_EQ(by_eos.stats.output_tokens, end);
      Request on_limit = request(prompt, end, {mode, 64, false});  // a stop on the last allowed token is a stop
      EXPECT_EQ(run(*e, on_limit).finish, FinishReason::kStop);
      Request ignoring = request(prompt, 120, {mode, 64, false});
      ignoring.ignore_eos = true;
      EXPECT_EQ(run(*e, ignoring).ids, text);
      ignoring.stop_ids = {text[at]};  // the user's own stops still hold
      EXPECT_EQ(run(*e, ignoring).ids, by_eos.ids);
    }
  }
}

TEST_F(EngineCoreTest, EveryLimitCutsTheSameText) {
  const auto e = engine(1);
  for (int tokens = 1; tokens <= 40; ++tokens) EXPECT_EQ(run(*e, request({7}, tokens)).ids, fake_text({7}, tokens));
}

TEST_F(EngineCoreTest, TheContextEndsTheText) {
  const auto e = engine(1);
  const std::vector<int32_t> prompt(kContext - 5, 3);
  const Result1 r = run(*e, request(prompt, 100));
  EXPECT_EQ(r.ids, fake_text(prompt, 5));
  EXPECT_EQ(r.finish, FinishReason::kLength);
}

TEST_F(EngineCoreTest, RefusesBadRequests) {
  const auto e = engine(1);
  const auto code = [&](Request r) { return e->validate(r).error().code; };
  EXPECT_EQ(code(request({}, 5)), Code::kInvalidArgument);
  EXPECT_EQ(code(request({-1}, 5)), Code::kInvalidArgument);
  EXPECT_EQ(code(request({kFakeVocab}, 5)), Code::kInvalidArgument);
  EXPECT_EQ(code(request({1}, 0)), Code::kInvalidArgument);
  EXPECT_EQ(code(request({1}, 5, {SpecMode::kTree, 256, false})), Code::kInvalidArgument);
  EXPECT_EQ(code(request({1}, 5, {SpecMode::kTree, -1, false})), Code::kInvalidArgument);
  EXPECT_EQ(code(request(std::vector<int32_t>(kContext, 1), 5)), Code::kInvalidArgument);
  Request r = request({1}, 5);
  r.stop_ids = {kFakeVocab};
  EXPECT_EQ(code(r), Code::kInvalidArgument);
  r = request({1}, 5);
  r.sampling.temperature = -1;
  EXPECT_EQ(code(r), Code::kInvalidArgument);
}

TEST_F(EngineCoreTest, LogitsThatAreNotFiniteFailTheirRequestAlone) {
  const auto e = engine(2);
  Result1 good, bad;
  ASSERT_TRUE(e->submit(1, request({4}, 50), into(good)).ok());
  ASSERT_TRUE(e->submit(2, request({kPoison}, 50), into(bad)).ok());
  while (e->step()) e->scheduler().check();
  EXPECT_EQ(bad.finish, FinishReason::kError);
  EXPECT_EQ(bad.error->code, Code::kCorrupt);
  EXPECT_EQ(good.ids, fake_text({4}, 50));
  EXPECT_EQ(e->free_pages(), e->pages());
}

// Submit, cancel, exhaust, preempt and finish at random: every text is a prefix of the known one, and complete unless
// cancelled.
class RandomSchedules : public EngineCoreTest, public testing::WithParamInterface<int> {};

TEST_P(RandomSchedules, NeverChangeAText) {
  std::mt19937 random(GetParam());
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int streams = pick(1, 16), pages = pick(4, 24);
  const auto e = engine(streams, pages);
  const int n = 40;
  std::vector<Result1> results(n);
  std::vector<std::vector<int32_t>> prompts(n);
  std::vector<int> tokens(n);
  int submitted = 0;
  while (submitted < n || !e->idle()) {
    for (; submitted < n && pick(0, 2) > 0; ++submitted) {
      prompts[submitted].resize(pick(1, std::min(200, pages * kPageRows / 2)));
      for (int32_t& id : prompts[submitted]) id = pick(0, kFakeVocab - 2);
      tokens[submitted] = pick(1, 120);
      const SpecMode mode = static_cast<SpecMode>(pick(0, 2));
      Request r = request(prompts[submitted], tokens[submitted], {mode, pick(0, 255), pick(0, 1) == 1});
      if (const Status status = e->submit(submitted + 1, std::move(r), into(results[submitted])); !status.ok()) {
        EXPECT_EQ(status.error().code, Code::kExhausted);
        break;
      }
    }
    if (pick(0, 15) == 0) e->cancel(pick(1, n));
    e->step();
    e->scheduler().check();
  }
  for (int i = 0; i < n; ++i) {
    const int room = std::min(512, pages * kPageRows) - static_cast<int>(prompts[i].size());
    std::vector<int32_t> expected = fake_text(prompts[i], std::min(tokens[i], room));
    EXPECT_EQ(results[i].last_events, 1);
    if (results[i].finish == FinishReason::kCancelled) {
      ASSERT_LE(results[i].ids.size(), expected.size());
      expected.resize(results[i].ids.size());
    }
    EXPECT_EQ(results[i].ids, expected) << "request " << i;
  }
  EXPECT_EQ(e->free_pages(), e->pages());
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomSchedules, testing::Range(0, 40));

}  // namespace
}  // namespace ddtree
