#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "backend/batch.h"

namespace ddtree {
namespace {

std::unique_ptr<Stream> make_stream(RequestId id, int prompt, int max_tokens, bool drafts = true) {
  auto stream = std::make_unique<Stream>();
  stream->id = id;
  stream->request.prompt.assign(prompt, 1);
  stream->request.max_tokens = max_tokens;
  stream->tokens = stream->request.prompt;
  stream->draft_depth = drafts ? kMaxDepth : 0;
  stream->draft_limit = 1 << 20;
  return stream;
}

// What a step does to a stream's counts: a chunk is computed, or a root and `accepted` nodes are.
void apply(const PlanItem& item, int accepted) {
  Stream& s = *item.stream;
  if (item.chunk > 0) {
    if (s.observes()) s.observed += item.chunk;
    s.computed += item.chunk;
    if (item.emits) s.tokens.push_back(2);
    return;
  }
  s.computed += 1 + accepted;
  s.tokens.insert(s.tokens.end(), 1 + accepted, 2);
}

TEST(Scheduler, RunsPromptsInChunksBesideDecoding) {
  PagePool pool(64);
  Scheduler scheduler(pool, {4, 8, 256, 128});
  ASSERT_TRUE(scheduler.submit(make_stream(1, 10, 50)).ok());
  apply(scheduler.plan().items[0], 0);
  ASSERT_TRUE(scheduler.submit(make_stream(2, 300, 50)).ok());
  const Plan plan = scheduler.plan();
  ASSERT_EQ(plan.items.size(), 2u);
  EXPECT_EQ(plan.items[0].chunk, 0);
  EXPECT_EQ(plan.items[0].max_depth, kMaxDepth);
  EXPECT_EQ(plan.items[1].chunk, 128);
  EXPECT_FALSE(plan.items[1].emits);
  EXPECT_EQ(plan.tree_rows, 256 - 128);
}

TEST(Scheduler, TheLastChunkOfAPromptEmits) {
  PagePool pool(64);
  Scheduler scheduler(pool, {4, 8, 256, 128});
  ASSERT_TRUE(scheduler.submit(make_stream(1, 129, 50)).ok());
  Plan plan = scheduler.plan();
  EXPECT_FALSE(plan.items[0].emits);
  apply(plan.items[0], 0);
  plan = scheduler.plan();
  EXPECT_EQ(plan.items[0].chunk, 1);
  EXPECT_TRUE(plan.items[0].emits);
}

TEST(Scheduler, DepthNeverGoesBeyondTheLastToken) {
  PagePool pool(64);
  Scheduler scheduler(pool, {1, 8, 256, 128});
  ASSERT_TRUE(scheduler.submit(make_stream(1, 4, 3)).ok());
  apply(scheduler.plan().items[0], 0);  // one token of three
  EXPECT_EQ(scheduler.plan().items[0].max_depth, 1);
}

TEST(Scheduler, RefusesWhatCanNeverFitAndWhatTheQueueCannotHold) {
  PagePool pool(2);
  Scheduler scheduler(pool, {1, 2, 256, 128});
  EXPECT_EQ(scheduler.submit(make_stream(1, 100, 29)).error().code, Code::kInvalidArgument);
  EXPECT_TRUE(scheduler.submit(make_stream(2, 100, 28)).ok());
  EXPECT_TRUE(scheduler.submit(make_stream(3, 1, 1)).ok());
  EXPECT_EQ(scheduler.submit(make_stream(4, 1, 1)).error().code, Code::kExhausted);
}

TEST(Scheduler, APreemptedStreamResumesAtItsRoot) {
  PagePool pool(4);
  Scheduler scheduler(pool, {2, 8, 256, 128});
  ASSERT_TRUE(scheduler.submit(make_stream(1, 64, 120, false)).ok());
  ASSERT_TRUE(scheduler.submit(make_stream(2, 64, 60, false)).ok());
  Stream* young = nullptr;
  for (int step = 0; step < 80 && (young == nullptr || young->stats.preemptions == 0); ++step) {
    const Plan plan = scheduler.plan();
    for (const PlanItem& item : plan.items) {
      if (item.stream->id == 2) young = item.stream;
      apply(item, 0);
    }
    scheduler.check();
  }
  ASSERT_EQ(young->stats.preemptions, 1);
  EXPECT_EQ(young->computed, 0);
  EXPECT_EQ(young->prefill_end(), young->length() - 1);
  EXPECT_GT(young->output_length(), 0);
}

// Rows that only a draft could fill are not worth another stream's pages.
TEST(Scheduler, DraftsTakeNoOnesPages) {
  PagePool pool(8);
  Scheduler scheduler(pool, {2, 8, 256, 128});
  ASSERT_TRUE(scheduler.submit(make_stream(1, 60, 60)).ok());
  ASSERT_TRUE(scheduler.submit(make_stream(2, 10, 60)).ok());
  for (const PlanItem& item : scheduler.plan().items) apply(item, 0);
  std::vector<int32_t> others;
  ASSERT_TRUE(pool.extend(others, pool.free_pages()).ok());
  const Plan plan = scheduler.plan();
  ASSERT_EQ(plan.items.size(), 2u);
  EXPECT_EQ(plan.items[0].max_depth, 64 - 61);  // 60 rows and the root's leave three of its page
  EXPECT_EQ(plan.items[1].max_depth, kMaxDepth);
}

// Random traffic in random cache sizes: every request ends with all its tokens or cancelled, in bounded time; rows,
// pages and slots are within their limits in every step; the oldest running stream is never preempted; and nothing is
// left behind.
class RandomTraffic : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(RandomTraffic, KeepsEveryInvariant) {
  const auto [seed, reuse] = GetParam();
  std::mt19937 random(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const int pages = pick(2, 40), streams = pick(1, 16), prefill = pick(1, 200);
  PagePool pool(pages);
  const SchedulerOptions options = {streams, 10, streams + prefill + pick(0, 300), prefill, reuse};
  Scheduler scheduler(pool, options);
  std::map<RequestId, int> wanted;  // tokens each request still has to end with
  std::set<RequestId> cancelled;
  RequestId next = 1;
  int to_submit = 60, steps = 0;
  while (to_submit > 0 || !scheduler.idle()) {
    ASSERT_LT(++steps, 100000) << "no progress";
    while (to_submit > 0 && pick(0, 3) > 0) {
      const int room = pages * kPageRows, prompt = pick(1, room), tokens = pick(1, 200);
      const Status status = scheduler.submit(make_stream(next, prompt, tokens, pick(0, 1) == 1));
      EXPECT_EQ(status.ok(), prompt + tokens <= room && status.ok());
      if (status.ok())
        wanted[next] = tokens;
      else if (status.error().code == Code::kExhausted)
        break;
      ++next;
      --to_submit;
    }
    if (pick(0, 9) == 0 && next > 1) {
      const RequestId victim = static_cast<RequestId>(pick(1, static_cast<int>(next) - 1));
      scheduler.cancel(victim);
    }
    for (const auto& stream : scheduler.take_cancelled()) {
      EXPECT_EQ(wanted.erase(stream->id), 1u);
      EXPECT_TRUE(stream->pages.empty());
    }
    scheduler.check();
    if (scheduler.idle()) continue;
    const Plan plan = scheduler.plan();
    scheduler.check();
    ASSERT_FALSE(plan.items.empty());
    int chunk_rows = 0, roots = 0;
    RequestId oldest = plan.items[0].stream->id;
    for (const PlanItem& item : plan.items) {
      const Stream& s = *item.stream;
      chunk_rows += item.chunk;
      roots += item.chunk == 0;
      const int rows = item.chunk > 0 ? s.computed + item.chunk : s.computed + 1 + item.max_depth;
      EXPECT_LE(rows, std::ssize(s.pages) * kPageRows);
      EXPECT_LE(s.length() + item.max_depth, s.prompt_length() + s.request.max_tokens);
      EXPECT_GE(s.id, oldest);  // in order of arrival: preempted streams come back before younger ones
      oldest = s.id;
    }
    EXPECT_LE(chunk_rows, options.prefill_rows);
    EXPECT_LE(chunk_rows + plan.tree_rows, options.max_rows);
    EXPECT_GE(plan.tree_rows, roots);
    for (const PlanItem& item : plan.items) {
      apply(item, item.max_depth > 0 ? pick(0, item.max_depth) : 0);
      if (item.stream->remaining() > 0) continue;
      const auto ended = scheduler.finish(item.stream);
      EXPECT_EQ(ended->output_length(), wanted.at(ended->id));
      wanted.erase(ended->id);
    }
  }
  EXPECT_TRUE(wanted.empty());
  EXPECT_EQ(scheduler.available_pages(), pages);
  scheduler.forget_prefixes();
  EXPECT_EQ(pool.free_pages(), pages);
  scheduler.check();
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomTraffic, testing::Combine(testing::Range(0, 200), testing::Bool()));

std::unique_ptr<Stream> make_salted(RequestId id, int prompt, const std::string& salt) {
  auto stream = make_stream(id, prompt, 20);
  stream->request.cache_salt = salt;
  return stream;
}

TEST(SchedulerPrefixes, TextsThatBeginAlikeAreComputedOnce) {
  PagePool pool(64);
  Scheduler scheduler(pool, {8, 8, 512, 100, true});
  for (RequestId id : {1, 2, 3}) ASSERT_TRUE(scheduler.submit(make_stream(id, 200, 20)).ok());
  Plan plan = scheduler.plan();
  ASSERT_EQ(plan.items.size(), 1u);  // the others wait for the first one's pages
  apply(plan.items[0], 0);
  plan = scheduler.plan();
  ASSERT_EQ(plan.items.size(), 1u);
  apply(plan.items[0], 0);  // 200 rows: three whole pages
  plan = scheduler.plan();
  ASSERT_EQ(plan.items.size(), 3u);
  for (int i : {1, 2}) {
    EXPECT_EQ(plan.items[i].chunk, 200 - 192);
    EXPECT_TRUE(plan.items[i].emits);
    EXPECT_EQ(plan.items[i].stream->stats.cached_tokens, 192);
    EXPECT_EQ(plan.items[i].stream->observed, 192);
  }
  scheduler.check();
}

TEST(SchedulerPrefixes, TheLastTokenOfAKnownPromptIsComputedAgain) {
  PagePool pool(64);
  Scheduler scheduler(pool, {8, 8, 512, 200, true});
  for (RequestId id : {1, 2}) {
    ASSERT_TRUE(scheduler.submit(make_stream(id, 128, 1)).ok());
    const Plan plan = scheduler.plan();
    ASSERT_EQ(plan.items.size(), 1u);
    EXPECT_EQ(plan.items[0].chunk, id == 1 ? 128 : 64);  // its row gives the first token
    EXPECT_TRUE(plan.items[0].emits);
    apply(plan.items[0], 0);
    scheduler.finish(plan.items[0].stream);
    scheduler.check();
  }
}

TEST(SchedulerPrefixes, OtherSaltsNeitherShareNorWait) {
  PagePool pool(64);
  Scheduler scheduler(pool, {8, 8, 512, 300, true});
  ASSERT_TRUE(scheduler.submit(make_salted(1, 100, "a")).ok());
  ASSERT_TRUE(scheduler.submit(make_salted(2, 100, "b")).ok());
  for (const PlanItem& item : scheduler.plan().items) apply(item, 0);
  ASSERT_TRUE(scheduler.submit(make_salted(3, 100, "b")).ok());
  const Plan plan = scheduler.plan();
  ASSERT_EQ(plan.items.size(), 3u);
  EXPECT_EQ(plan.items[1].stream->stats.cached_tokens, 0);
  EXPECT_EQ(plan.items[2].stream->stats.cached_tokens, 64);
  scheduler.check();
}

TEST(SchedulerPrefixes, APreemptedStreamFindsItsPagesAgain) {
  PagePool pool(5);
  Scheduler scheduler(pool, {2, 8, 256, 128, true});
  ASSERT_TRUE(scheduler.submit(make_salted(1, 130, "a")).ok());
  for (const PlanItem& item : scheduler.plan().items) apply(item, 0);
  for (const PlanItem& item : scheduler.plan().items) apply(item, 0);
  auto other = make_salted(2, 64, "b");
  other->request.max_tokens = 200;
  ASSERT_TRUE(scheduler.submit(std::move(other)).ok());
  int preempted = 0, cached = 0;
  for (int step = 0; step < 400 && !scheduler.idle(); ++step) {
    const Plan plan = scheduler.plan();
    scheduler.check();
    for (const PlanItem& item : plan.items) {
      Stream& s = *item.stream;
      if (s.stats.preemptions > preempted) {
        preempted = s.stats.preemptions;
        cached += s.computed;
      }
      apply(item, 0);
      if (s.remaining() == 0) scheduler.finish(&s);
    }
  }
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(cached % kPageRows, 0);
}

}  // namespace
}  // namespace ddtree
