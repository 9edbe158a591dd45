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
constexpr uint64_t kShareMask = 0xffff;

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
  pool->claim_.store(static_cast<uint64_t>(size));
  try {
    for (int i = 1; i < size; ++i) pool->threads_.emplace_back([p = pool.get()] { p->work(); });
  } catch (const std::system_error& e) {
    return Error{Code::kExhausted,
                 "cannot start " + std::to_string(size) + " threads: " + e.what() + "; use fewer threads"};
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_shares(Call call, void* task) {
  if (size_ == 1) return call(task, 0);
  call_ = call;
  task_ = task;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t region = (claim_.load(std::memory_order_relaxed) >> 16) + 1;
  claim_.store(region << 16 | 1);  // sequentially consistent with sleepers_: a thread sees this or is woken
  if (sleepers_.load() > 0) wake();
  call(task, 0);
  int others = size_ - 1;
  while (run_one()) --others;
  Spinner spinner;
  while (done_.load(std::memory_order_acquire) < others) spinner.wait();
}

// Claims and runs one share of the open region; false if there is none.
bool ThreadPool::run_one() {
  uint64_t claim = claim_.load(std::memory_order_acquire);
  do {
    if ((claim & kShareMask) >= static_cast<uint64_t>(size_)) return false;
  } while (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  call_(task_, static_cast<int>(claim & kShareMask));
  return true;
}

void ThreadPool::work() {
  Spinner spinner;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (run_one()) {
      done_.fetch_add(1, std::memory_order_release);
      spinner = Spinner();
    } else if (!spinner.wait()) {
      sleep();
      spinner = Spinner();
    }
  }
}

void ThreadPool::wake() {
  const std::lock_guard lock(mutex_);
  awake_.notify_all();
}

void ThreadPool::sleep() {
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  awake_.wait(lock, [&] { return stop_.load() || (claim_.load() & kShareMask) < static_cast<uint64_t>(size_); });
  sleepers_.fetch_sub(1);
}

}  // namespace ddtree
