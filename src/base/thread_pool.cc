#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <system_error>

namespace ddtree {
namespace {

using Clock = std::chrono::steady_clock;

// A waiting thread first spins (a region starts within about 100 ns of being opened), then offers its core to others
// between looks, then, if it is idle, sleeps. A decode step's gaps between regions are far below the last limit.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kIdle = std::chrono::microseconds(500);
// How long the caller, when it has finished, leaves a thread to begin its share: far above the 50 ns that one on time
// needs, far below the milliseconds that an absent one may take.
constexpr int kPatience = 100;  // looks, of about 25 ns

// Between two looks at a shared variable: frees the core's resources for its sibling thread.
inline void relax() { __builtin_ia32_pause(); }

class Spinner {
 public:
  // False once the wait has lasted kIdle.
  bool wait() {
    if (++looks_ % 32 != 0) {
      relax();
      return true;
    }
    const Clock::time_point now = Clock::now();
    if (start_ == Clock::time_point()) start_ = now;
    if (now - start_ > kSpin) {
      sched_yield();
      looks_ = 31;  // yield at every look from now on
    }
    return now - start_ <= kIdle;
  }

 private:
  Clock::time_point start_;
  uint32_t looks_ = 0;
};

}  // namespace

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return std::max(1u, std::thread::hardware_concurrency());
  return std::max(1, CPU_COUNT(&set));
}

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(int threads) {
  if (threads < 0 || threads > kMaxThreads)
    return Error{Code::kInvalidArgument, "threads = " + std::to_string(threads) + ": must be 0 (one per core) to " +
                                             std::to_string(kMaxThreads)};
  const int size = threads == 0 ? std::min(usable_cores(), kMaxThreads) : threads;
  std::unique_ptr<ThreadPool> pool(new ThreadPool(size));
  try {
    for (int share = 1; share < size; ++share)
      pool->worker(share).thread = std::thread([p = pool.get(), share] { p->work(share); });
  } catch (const std::system_error& e) {
    return Error{Code::kExhausted,
                 "cannot start " + std::to_string(size) + " threads: " + e.what() + "; use fewer threads"};
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake();
  for (Worker& worker : workers_)
    if (worker.thread.joinable()) worker.thread.join();
}

void ThreadPool::run_stages(const Stage* stages, int count) {
  if (size_ == 1) {
    for (int k = 0; k < count; ++k) stages[k].call(stages[k].task, 0);
    return;
  }
  stages_before_ += static_cast<uint64_t>(stage_count_);
  stages_ = stages;
  stage_count_ = count;
  std::fill(helped_.begin(), helped_.end(), false);
  const uint64_t region = region_.load(std::memory_order_relaxed) + 1;
  region_.store(region);  // sequentially consistent with sleepers_: a thread sees this or is woken
  if (sleepers_.load() > 0) wake();
  for (int k = 0; k < count; ++k) {
    const uint64_t finished = stages_before_ + static_cast<uint64_t>(k) + 1;
    stages[k].call(stages[k].task, 0);
    worker(0).done.store(finished, std::memory_order_release);
    for (int share = 1; share < size_; ++share) help(share, stages[k], region, finished);
    wait_for(finished);
  }
}

// Runs the share if its thread does not take part in this region.
void ThreadPool::help(int share, const Stage& stage, uint64_t region, uint64_t finished) {
  Worker& w = worker(share);
  char& helped = helped_[static_cast<size_t>(share)];
  if (!helped) {
    for (int look = 0; look < kPatience; ++look) {
      if (w.done.load(std::memory_order_acquire) >= finished) return;
      relax();
    }
    uint64_t before = region - 1;
    helped = w.taken.compare_exchange_strong(before, region);
    if (!helped) return;
  }
  stage.call(stage.task, share);
  w.done.store(finished, std::memory_order_release);
}

// Returns when every share has finished so many stages.
void ThreadPool::wait_for(uint64_t finished) const {
  for (const Worker& w : workers_) {
    Spinner spinner;
    while (w.done.load(std::memory_order_acquire) < finished) spinner.wait();
  }
}

void ThreadPool::work(int share) {
  Spinner spinner;
  uint64_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t region = region_.load(std::memory_order_acquire);
    if (region != seen) {
      seen = region;
      uint64_t before = region - 1;
      // Fails when the caller has lost patience.
      if (worker(share).taken.compare_exchange_strong(before, region)) take_part(share);
      spinner = Spinner();
    } else if (!spinner.wait()) {
      sleep(seen);
      spinner = Spinner();
    }
  }
}

// The thread's shares of this region, which does not end before its last.
void ThreadPool::take_part(int share) {
  const Stage* stages = stages_;
  const int count = stage_count_;
  uint64_t finished = stages_before_;
  for (int k = 0; k < count; ++k) {
    if (k > 0) wait_for(finished);
    stages[k].call(stages[k].task, share);
    worker(share).done.store(++finished, std::memory_order_release);
  }
}

void ThreadPool::wake() {
  const std::lock_guard lock(mutex_);
  awake_.notify_all();
}

void ThreadPool::sleep(uint64_t seen) {
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  awake_.wait(lock, [&] { return stop_.load() || region_.load() != seen; });
  sleepers_.fetch_sub(1);
}

}  // namespace ddtree
