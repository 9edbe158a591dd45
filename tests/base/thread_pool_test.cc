// ThreadPool: every share runs once, a run waits for all of them, and idle threads stop using the processor.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <numeric>

namespace ddtree {
namespace {

std::unique_ptr<ThreadPool> pool_of(int threads) {
  Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::create(threads);
  CHECK(pool.ok());
  return *std::move(pool);
}

double process_seconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](timeval t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPool, RunsEveryShareOnceAndWaits) {
  for (int threads : {1, 2, 3, 7, 64}) {
    const std::unique_ptr<ThreadPool> pool = pool_of(threads);
    ASSERT_EQ(pool->size(), threads);
    std::vector<int> runs(threads);  // not atomic: a run orders its shares before its return
    for (int i = 0; i < 200; ++i) {
      pool->run([&](int share) { ++runs[share]; });
      for (int share = 0; share < threads; ++share) ASSERT_EQ(runs[share], i + 1) << threads << " threads";
    }
  }
}

TEST(ThreadPool, SharesSeeWhatTheCallerWroteBefore) {
  const std::unique_ptr<ThreadPool> pool = pool_of(4);
  std::vector<int64_t> input(4), sum(4);
  for (int64_t i = 0; i < 20000; ++i) {
    for (int64_t& v : input) v = i;
    pool->run([&](int share) { sum[share] = std::accumulate(input.begin(), input.end(), int64_t{0}); });
    for (int64_t s : sum) ASSERT_EQ(s, 4 * i);
  }
}

// With 64 threads most are late, and the caller runs their shares of every stage.
TEST(ThreadPool, AStageSeesAllSharesOfTheOneBefore) {
  for (int threads : {1, 2, 3, 7, 64}) {
    const std::unique_ptr<ThreadPool> pool = pool_of(threads);
    std::vector<int64_t> value(threads), sum(threads), again(threads);
    for (int64_t i = 0; i < (threads < 64 ? 3000 : 200); ++i) {
      const auto add_up = [](const std::vector<int64_t>& v) { return std::accumulate(v.begin(), v.end(), int64_t{0}); };
      pool->run([&](int share) { value[share] = i + share; }, [&](int share) { sum[share] = add_up(value); },
                [&](int share) { value[share] = 0, again[share] = add_up(sum); });
      const int64_t want = threads * i + threads * (threads - 1) / 2;
      for (int share = 0; share < threads; ++share) {
        ASSERT_EQ(value[share], 0);
        ASSERT_EQ(sum[share], want) << threads << " threads";
        ASSERT_EQ(again[share], threads * want) << threads << " threads";
      }
    }
  }
}

// Regions of different lengths in turn, with pauses in which threads fall asleep.
TEST(ThreadPool, StagesOfManyRegionsAreEachRunOnce) {
  const std::unique_ptr<ThreadPool> pool = pool_of(3);
  std::vector<int> runs(3);
  const auto count = [&](int share) { ++runs[share]; };
  for (int i = 0; i < 300; ++i) {
    pool->run(count);
    pool->run(count, count, count);
    pool->run(count, count);
    if (i % 60 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (int n : runs) ASSERT_EQ(n, 6 * (i + 1));
  }
}

TEST(ThreadPool, ShareZeroIsTheCallers) {
  const std::unique_ptr<ThreadPool> pool = pool_of(3);
  std::thread::id ran;
  pool->run([&](int share) {
    if (share == 0) ran = std::this_thread::get_id();
  });
  EXPECT_EQ(ran, std::this_thread::get_id());
}

TEST(ThreadPool, RunsAgainAfterItsThreadsSlept) {
  const std::unique_ptr<ThreadPool> pool = pool_of(3);
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> runs = 0;
    pool->run([&](int) { ++runs; });
    EXPECT_EQ(runs, 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
}

TEST(ThreadPool, IdleThreadsUseNoProcessor) {
  const std::unique_ptr<ThreadPool> pool = pool_of(4);
  pool->run([](int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = process_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(process_seconds() - before, 0.1);  // three spinning threads would use 0.4 and more on two cores
}

TEST(ThreadPool, PoolsComeAndGo) {
  for (int i = 0; i < 200; ++i) {
    const std::unique_ptr<ThreadPool> pool = pool_of(3);
    if (i % 2 == 0) pool->run([](int) {});
  }
}

TEST(ThreadPool, ZeroMeansOneThreadPerUsableCore) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_EQ(pool_of(0)->size(), usable_cores());
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  for (int threads : {-1, ThreadPool::kMaxThreads + 1}) {
    const auto pool = ThreadPool::create(threads);
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(pool.error().code, Code::kInvalidArgument);
    EXPECT_NE(pool.error().message.find(std::to_string(threads)), std::string::npos);
  }
}

}  // namespace
}  // namespace ddtree
