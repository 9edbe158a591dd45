// The engine with a target and a drafter whose text is known in advance.

#include "engine/engine_core.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/registry.h"
#include "engine/backend_forward.h"
#include "engine/fake_model.h"

namespace ddtree {
namespace {

struct Finished {
  std::vector<int32_t> ids;
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;
  RequestStats stats;
  int last_events = 0;
};

// Is lost once, in its twentieth call of finish().
class LostBackend final : public BackendForward {
 public:
  using BackendForward::BackendForward;
  Status finish() override {
    if (++calls_ == 20) return Error{Code::kDeviceLost, "the device is gone"};
    return BackendForward::finish();
  }

 private:
  int calls_ = 0;
};

class EngineCoreTest : public testing::Test {
 protected:
  static constexpr int kContext = 512;

  std::unique_ptr<EngineCore> engine(int streams, int pages = 0, int eos = -1, int draft_context = 1 << 20,
                                     int block = 8) {
    drafter_ = std::make_unique<FakeDrafter>(block, draft_context, 3);
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

  static EventSink into(Finished& result) {
    return [&result](Event&& event) {
      EXPECT_EQ(result.finish, FinishReason::kNone) << "an event after the last";
      for (const OutputToken& token : event.tokens) result.ids.push_back(token.id);
      result.finish = event.finish;
      result.error = event.error;
      if (event.stats) result.stats = *event.stats;
      result.last_events += event.finish != FinishReason::kNone;
    };
  }

  Finished run(EngineCore& engine, Request r) {
    Finished result;
    EXPECT_TRUE(engine.validate(r).ok());
    EXPECT_TRUE(engine.submit(1, std::move(r), into(result)).ok());
    while (engine.step()) engine.scheduler().check();
    EXPECT_EQ(engine.free_pages(), engine.pages());
    return result;
  }

  std::unique_ptr<EngineCore> sharing_engine(int streams, int pages) {
    drafter_ = std::make_unique<FakeDrafter>(8, 1 << 20, 3);
    EngineOptions options;
    options.scheduler = {streams, 64, 256, 64, true};
    options.max_context = kContext;
    options.cache_tokens = pages * kPageRows;
    return *EngineCore::create(*backend_, decoder_, drafter_.get(), options);
  }

  std::unique_ptr<Backend> backend_ = *make_backend({"ref", 1, "auto"});
  FakeDecoder decoder_{256};
  std::unique_ptr<FakeDrafter> drafter_;
};

TEST_F(EngineCoreTest, EveryModeAndBudgetGivesTheKnownText) {
  const auto e = engine(1);
  const std::vector<int32_t> prompt = {5, 9, 3};
  for (SpecMode mode : {SpecMode::kOff, SpecMode::kChain, SpecMode::kTree, SpecMode::kAuto})
    for (int budget : {0, 1, 2, 7, 31, 32, 33, 63, 64, 65, 255}) {
      const Finished r = run(*e, request(prompt, 100, {mode, budget, false}));
      EXPECT_EQ(r.ids, fake_text(prompt, 100)) << spec_mode_name(mode) << ":" << budget;
      EXPECT_EQ(r.finish, FinishReason::kLength);
    }
}

TEST_F(EngineCoreTest, StatisticsAddUp) {
  const auto e = engine(1);
  const Finished r = run(*e, request({1, 2}, 200, {SpecMode::kTree, 64, false}));
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
  const Finished r = run(*short_sighted, request({1}, 200));
  EXPECT_EQ(r.ids, fake_text({1}, 200));
  EXPECT_NE(r.stats.not_speculating.find("56"), std::string::npos);  // 64 less a block of 8
  EXPECT_LT(r.stats.accepted_length(), 2.0);
}

// An engine that is told that rows are free drafts; told that they cost everything, it does not: neither needs a clock,
// since the first passes are chosen before any was timed.
TEST_F(EngineCoreTest, AutoDraftsWhereThatShouldPayAndSaysWhyNot) {
  drafter_ = std::make_unique<FakeDrafter>(8, 1 << 20, 1);
  EngineOptions options;
  options.scheduler = {1, 64, 256, 64};
  options.max_context = kContext;
  const SpecOptions spec = {SpecMode::kAuto, 32, false};
  options.step_prior = {1, 1e-6, 0, 0, 0, 1, 0, 1e-6, 1e-6, 1e-9};
  const Finished free = run(**EngineCore::create(*backend_, decoder_, drafter_.get(), options), request({1}, 4, spec));
  EXPECT_EQ(free.ids, fake_text({1}, 4));
  EXPECT_GT(free.stats.drafted, 0);
  EXPECT_EQ(free.stats.effective_mode, "auto");
  EXPECT_EQ(free.stats.decision.rfind("auto: ", 0), 0u);
  int passes = 0;
  for (int n : free.stats.passes_by_nodes) passes += n;
  EXPECT_EQ(passes, free.stats.steps);

  options.step_prior = {1, 1e6, 0, 0, 0, 1, 0, 1e6, 1e6, 1e6};
  const Finished dear = run(**EngineCore::create(*backend_, decoder_, drafter_.get(), options), request({1}, 4, spec));
  EXPECT_EQ(dear.ids, fake_text({1}, 4));
  EXPECT_EQ(dear.stats.drafted, 0);
  EXPECT_EQ(dear.stats.effective_mode, "off");
  EXPECT_EQ(dear.stats.not_speculating, dear.stats.decision);
  EXPECT_NE(dear.stats.decision.find("because drafting costs"), std::string::npos) << dear.stats.decision;
}

TEST_F(EngineCoreTest, ReportsWhatWasDone) {
  const auto e = engine(1);
  const Finished one = run(*e, request({1}, 1));  // no pass after prefill
  EXPECT_EQ(one.stats.effective_mode, "off");
  EXPECT_NE(one.stats.not_speculating, "");
  const auto short_sighted = engine(1, 0, -1, 64);
  const Finished beyond = run(*short_sighted, request(std::vector<int32_t>(80, 2), 20));
  EXPECT_EQ(beyond.ids, fake_text(std::vector<int32_t>(80, 2), 20));
  EXPECT_EQ(beyond.stats.effective_mode, "off");
  EXPECT_NE(beyond.stats.not_speculating.find("56"), std::string::npos);  // 64 less a block of 8
}

TEST_F(EngineCoreTest, ABlockLargerThanATreeIsDeepIsCut) {
  const auto e = engine(1, 0, -1, 1 << 20, 40);
  const Finished r = run(*e, request({3}, 150, {SpecMode::kChain, 255, false}));
  EXPECT_EQ(r.ids, fake_text({3}, 150));
  EXPECT_GT(r.stats.accepted_length(), 1.0);
}

// As a stop string would: the request is asked about every token, in order, and never about one behind the end.
TEST_F(EngineCoreTest, ARequestsOwnStopCutsTokensCountsAndHashAlike) {
  const auto e = engine(1);
  const std::vector<int32_t> text = fake_text({11, 4}, 60);
  for (int end : {1, 2, 9, 20}) {
    uint64_t hash = 0;
    for (SpecMode mode : {SpecMode::kOff, SpecMode::kChain, SpecMode::kTree, SpecMode::kAuto}) {
      std::vector<int32_t> asked;
      Request r = request({11, 4}, 60, {mode, 64, false});
      r.stops = [&](int32_t token) {
        asked.push_back(token);
        return std::ssize(asked) == end;
      };
      const Finished result = run(*e, std::move(r));
      EXPECT_EQ(result.ids, std::vector<int32_t>(text.begin(), text.begin() + end));
      EXPECT_EQ(asked, result.ids);
      EXPECT_EQ(result.finish, FinishReason::kStop);
      EXPECT_EQ(result.stats.output_tokens, end);
      if (hash == 0) hash = result.stats.logits_hash;
      EXPECT_EQ(result.stats.logits_hash, hash);
    }
  }
}

// What fails behind the end of the text does not fail the text; what fails within it comes after the tokens before it.
TEST_F(EngineCoreTest, AFailureInsideAnAcceptedPathDoesNotHideTokens) {
  const std::vector<int32_t> text = fake_text({11, 4}, 60);
  decoder_.poison_position(2 + 20);  // the row that would give token 21
  const auto e = engine(1);
  for (SpecMode mode : {SpecMode::kOff, SpecMode::kTree, SpecMode::kAuto}) {
    const Finished failed = run(*e, request({11, 4}, 60, {mode, 64, false}));
    EXPECT_EQ(failed.finish, FinishReason::kError);
    EXPECT_EQ(failed.ids, std::vector<int32_t>(text.begin(), text.begin() + 21));
    for (int end : {18, 19, 20, 21}) {
      int asked = 0;
      Request r = request({11, 4}, 60, {mode, 64, false});
      r.stops = [&](int32_t) { return ++asked == end; };
      const Finished stopped = run(*e, std::move(r));
      EXPECT_EQ(stopped.finish, FinishReason::kStop) << end;
      EXPECT_EQ(std::ssize(stopped.ids), end);
    }
  }
}

TEST_F(EngineCoreTest, ADeviceErrorEndsEveryStreamOnce) {
  LostBackend lost(*backend_);
  EngineOptions options;
  options.scheduler = {3, 64, 256, 64};
  options.max_context = kContext;
  const auto e = *EngineCore::create(lost, decoder_, nullptr, options);
  std::vector<Finished> results(5);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(e->submit(i + 1, request({i}, 200), into(results[i])).ok());
  while (e->step()) e->scheduler().check();
  for (const Finished& result : results) {
    EXPECT_EQ(result.finish, FinishReason::kError);
    EXPECT_EQ(result.error->code, Code::kDeviceLost);
    EXPECT_EQ(result.last_events, 1);
  }
  EXPECT_EQ(e->free_pages(), e->pages());
  EXPECT_EQ(run(*e, request({9}, 30)).ids, fake_text({9}, 30));  // the next request finds a clean engine
}

TEST_F(EngineCoreTest, RefusesImpossibleOptions) {
  EngineOptions options;
  options.max_context = kContext;
  options.max_budget = kMaxNodes + 1;
  EXPECT_EQ(EngineCore::create(*backend_, decoder_, nullptr, options).error().code, Code::kInvalidArgument);
  options.max_budget = 8;
  options.cache_tokens = int64_t{1} << 40;
  EXPECT_EQ(EngineCore::create(*backend_, decoder_, nullptr, options).error().code, Code::kInvalidArgument);
}

TEST_F(EngineCoreTest, StopsCutInsideAnAcceptedPathAsInPlainDecoding) {
  const std::vector<int32_t> prompt = {11, 4};
  const std::vector<int32_t> text = fake_text(prompt, 120);
  for (int at : {0, 1, 2, 5, 17, 40, 41, 42, 43}) {
    const int end =
        static_cast<int>(std::find(text.begin(), text.end(), text[at]) - text.begin()) + 1;  // its first occurrence
    const auto e = engine(1, 0, text[at]);
    for (SpecMode mode : {SpecMode::kOff, SpecMode::kTree, SpecMode::kAuto}) {
      const Finished by_eos = run(*e, request(prompt, 120, {mode, 64, false}));
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
  const Finished r = run(*e, request(prompt, 100));
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
  Finished good, bad;
  ASSERT_TRUE(e->submit(1, request({4}, 50), into(good)).ok());
  ASSERT_TRUE(e->submit(2, request({kPoison}, 50), into(bad)).ok());
  while (e->step()) e->scheduler().check();
  EXPECT_EQ(bad.finish, FinishReason::kError);
  EXPECT_EQ(bad.error->code, Code::kCorrupt);
  EXPECT_EQ(good.ids, fake_text({4}, 50));
  EXPECT_EQ(e->free_pages(), e->pages());
}

TEST_F(EngineCoreTest, AnswersToOnePromptShareIt) {
  const auto e = sharing_engine(8, 64);
  const std::vector<int32_t> prompt(300, 5);
  std::vector<Finished> results(8);
  for (int i = 0; i < 8; ++i) {
    Request r = request(prompt, 30);
    r.choice = i;
    ASSERT_TRUE(e->submit(i + 1, std::move(r), into(results[i])).ok());
  }
  while (e->step()) e->scheduler().check();
  int rows = 0;
  for (const Finished& result : results) {
    EXPECT_EQ(result.ids, fake_text(prompt, 30));
    EXPECT_GT(result.stats.accepted_length(), 2.0);
    rows += result.stats.prefill_tokens;
  }
  EXPECT_EQ(rows, 300 + 7 * (300 - 256));
  EXPECT_EQ(e->free_pages(), e->pages());
}

// The next turn of a chat: its prompt is the last one with its answer.
TEST_F(EngineCoreTest, TheNextTurnFindsPromptAndAnswer) {
  const auto e = sharing_engine(2, 64);
  std::vector<int32_t> text(150, 5);
  const Finished first = run(*e, request(text, 100));
  text.insert(text.end(), first.ids.begin(), first.ids.end());
  text.push_back(7);
  const Finished second = run(*e, request(text, 20));
  EXPECT_EQ(second.ids, fake_text(text, 20));
  EXPECT_EQ(second.stats.cached_tokens, 192);  // of 250; the drafter has seen all rows but the last passes'
  EXPECT_EQ(second.stats.prefill_tokens, 251 - 192);
}

TEST_F(EngineCoreTest, AfterADeviceErrorNothingIsReused) {
  LostBackend lost(*backend_);
  EngineOptions options;
  options.scheduler = {2, 64, 256, 64, true};
  options.max_context = kContext;
  const auto e = *EngineCore::create(lost, decoder_, nullptr, options);
  const std::vector<int32_t> prompt(200, 3);
  EXPECT_EQ(run(*e, request(prompt, 100)).finish, FinishReason::kError);
  EXPECT_EQ(run(*e, request(prompt, 5)).stats.cached_tokens, 0);
  EXPECT_EQ(run(*e, request(prompt, 5)).stats.cached_tokens, 192);
}

// Whatever phase it is in, two steps later its pages are free.
TEST_F(EngineCoreTest, CancellingFreesPagesWithinTwoSteps) {
  for (int steps : {0, 1, 2, 3, 5, 9, 20}) {
    const auto e = sharing_engine(2, 32);
    Finished result;
    ASSERT_TRUE(e->submit(1, request(std::vector<int32_t>(200, 3), 200), into(result)).ok());
    for (int i = 0; i < steps; ++i) e->step();
    e->cancel(1);
    e->step();
    e->step();
    EXPECT_EQ(result.finish, FinishReason::kCancelled) << steps;
    EXPECT_EQ(e->free_pages(), e->pages()) << steps;
  }
}

// Submit, cancel, exhaust, preempt and finish at random: every text is a prefix of the known one, and complete unless
// cancelled.
class RandomSchedules : public EngineCoreTest, public testing::WithParamInterface<std::tuple<int, bool>> {};

TEST_P(RandomSchedules, NeverChangeAText) {
  const auto [seed, reuse] = GetParam();
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int streams = pick(1, 16), pages = pick(4, 24);
  const auto e = reuse ? sharing_engine(streams, pages) : engine(streams, pages);
  const int n = 40;
  std::vector<Finished> results(n);
  std::vector<std::vector<int32_t>> prompts(n);
  std::vector<int> tokens(n);
  int submitted = 0;
  while (submitted < n || !e->idle()) {
    for (; submitted < n && pick(0, 2) > 0; ++submitted) {
      prompts[submitted].resize(pick(1, std::min(200, pages * kPageRows / 2)));
      for (int32_t& id : prompts[submitted]) id = pick(0, kFakeVocab - 2);
      if (reuse && submitted > 0 && pick(0, 1) == 1) {  // begins as another does
        const std::vector<int32_t>& other = prompts[pick(0, submitted - 1)];
        const size_t common = std::min(other.size(), prompts[submitted].size());
        std::copy_n(other.begin(), common, prompts[submitted].begin());
      }
      tokens[submitted] = pick(1, 120);
      const SpecMode mode = static_cast<SpecMode>(pick(0, 3));
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
INSTANTIATE_TEST_SUITE_P(Seeds, RandomSchedules, testing::Combine(testing::Range(0, 40), testing::Bool()));

}  // namespace
}  // namespace ddtree
