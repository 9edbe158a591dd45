// ThreadPool: fork-join over a fixed set of threads, for regions of a few microseconds.
// Idle threads spin for a moment, then sleep: an idle process burns nothing. Shares are claimed, not assigned: when a
// thread is late (asleep, or its core was given to another process), the caller runs its share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace ddtree {

// Cores this process may run on (its affinity mask), at least 1.
int usable_cores();

class ThreadPool {
 public:
  static constexpr int kMaxThreads = 1024;

  // `threads` counts the caller of run(); 0 means usable_cores().
  static Result<std::unique_ptr<ThreadPool>> create(int threads);
  ~ThreadPool();

  int size() const { return size_; }

  // Calls task(share) once for every share in [0, size()) and returns when all have returned. Share 0 runs on the
  // caller. One run at a time; no run inside a run.
  template <class Task>
  void run(Task&& task) {
    using Stored = std::remove_reference_t<Task>;
    run_shares([](void* stored, int share) { (*static_cast<Stored*>(stored))(share); }, &task);
  }

 private:
  using Call = void (*)(void* task, int share);

  explicit ThreadPool(int size) : size_(size) {}
  void run_shares(Call call, void* task);
  bool run_one();
  void work();
  void wake();
  void sleep();

  const int size_;
  Call call_ = nullptr;  // of the current region; written before claim_ opens it
  void* task_ = nullptr;
  // Region number in the high bits, next share to claim in the low 16. Closed when the next share is size_.
  alignas(64) std::atomic<uint64_t> claim_;
  alignas(64) std::atomic<int> done_ = 0;  // shares finished in this region, the caller's own excepted
  alignas(64) std::atomic<int> sleepers_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable awake_;
  std::vector<std::thread> threads_;
};

}  // namespace ddtree
