// The engine's thread, under several threads of callers.

#include "engine/engine.h"

#include <gtest/gtest.h>

#include <thread>

#include "backend/registry.h"
#include "engine/fake_model.h"

namespace ddtree {
namespace {

// The events of one request, handed from the engine's thread to a waiting one.
struct Inbox {
  std::mutex mutex;
  std::condition_variable ready;
  std::vector<int32_t> ids;
  int last_events = 0;
  FinishReason finish = FinishReason::kNone;

  EventSink sink() {
    return [this](Event&& event) {
      const std::lock_guard lock(mutex);
      for (const OutputToken& token : event.tokens) ids.push_back(token.id);
      if (event.finish == FinishReason::kNone) return;
      finish = event.finish;
      ++last_events;
      ready.notify_one();
    };
  }
  void wait() {
    std::unique_lock lock(mutex);
    ready.wait(lock, [this] { return last_events > 0; });
  }
};

class EngineTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine(int streams) {
    EngineOptions options;
    options.scheduler = {streams, 1000, 256, 64};
    options.max_context = 4096;
    options.cache_tokens = 64 * kPageRows;
    return std::make_unique<Engine>(*EngineCore::create(*backend_, decoder_, &drafter_, options));
  }
  static Request request(int32_t first, int tokens) {
    Request r;
    r.prompt = {first};
    r.max_tokens = tokens;
    return r;
  }

  std::unique_ptr<Backend> backend_ = *make_backend({"ref", 1, "auto"});
  FakeDecoder decoder_{256};
  FakeDrafter drafter_{8, 1 << 20, 2};
};

TEST_F(EngineTest, ManyCallersGetTheirOwnTexts) {
  const auto e = engine(4);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller)
    callers.emplace_back([&e, caller] {
      for (int i = 0; i < 10; ++i) {
        Inbox inbox;
        const Result<RequestId> id = e->submit(request(caller * 10 + i, 30), inbox.sink());
        ASSERT_TRUE(id.ok());
        if (i % 4 == 3) e->cancel(*id);
        inbox.wait();
        const std::vector<int32_t> text = fake_text({caller * 10 + i}, 30);
        EXPECT_EQ(inbox.ids, std::vector<int32_t>(text.begin(), text.begin() + std::ssize(inbox.ids)));
        EXPECT_TRUE(inbox.ids.size() == 30 || inbox.finish == FinishReason::kCancelled);
      }
    });
  for (std::thread& caller : callers) caller.join();
}

TEST_F(EngineTest, SaysWhatItIsDoing) {
  const auto engine = this->engine(4);
  Inbox inbox;
  std::vector<EngineLoad> seen;
  Request watched = request(7, 20);
  watched.stops = [&](int32_t) {
    seen.push_back(engine->load());
    return false;
  };
  ASSERT_TRUE(engine->submit(watched, inbox.sink()).ok());
  inbox.wait();
  ASSERT_EQ(seen.size(), 20u);
  EXPECT_EQ(seen.back().running, 1);
  EXPECT_EQ(seen.back().waiting, 0);
  EXPECT_EQ(seen.back().pages, 64);
  EXPECT_EQ(seen.back().unused_pages, 63);
  EXPECT_GT(seen.back().totals.steps, 1);
  EXPECT_GE(seen.back().since, seen.front().since);
  EngineLoad rest = engine->load();
  while (rest.busy()) rest = engine->load();
  EXPECT_EQ(rest.unused_pages, 64);
  EXPECT_GT(rest.totals.steps, seen.back().totals.steps);
}

TEST_F(EngineTest, EndingItEndsEveryRequestOnce) {
  std::vector<Inbox> inboxes(20);
  {
    const auto e = engine(4);
    for (size_t i = 0; i < inboxes.size(); ++i)
      ASSERT_TRUE(e->submit(request(static_cast<int32_t>(i), 3000), inboxes[i].sink()).ok());
  }
  for (const Inbox& inbox : inboxes) EXPECT_EQ(inbox.last_events, 1);
}

TEST_F(EngineTest, RefusesBadRequestsAtOnceAndIgnoresUnknownCancels) {
  const auto e = engine(1);
  Inbox inbox;
  EXPECT_EQ(e->submit(request(-1, 5), inbox.sink()).error().code, Code::kInvalidArgument);
  EXPECT_EQ(inbox.last_events, 0);
  e->cancel(12345);
  ASSERT_TRUE(e->submit(request(1, 5), inbox.sink()).ok());
  inbox.wait();
  EXPECT_EQ(inbox.ids.size(), 5u);
}

}  // namespace
}  // namespace ddtree
