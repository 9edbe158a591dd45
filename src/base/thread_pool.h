// ThreadPool: fork-join over a fixed set of threads, for regions of a few microseconds.
// Idle threads spin for a moment, then sleep: an idle process burns nothing. When a thread is late (asleep, or its core
// was given to another process), the caller takes its share.
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

  // One other thread, on cache lines of its own: the caller reads `done` while it waits, and `taken` only when the
  // thread is late, so that a thread that is on time takes its share without waiting for a cache line.
  struct Worker {
    alignas(64) std::atomic<uint64_t> taken = 0;  // the last region whose share somebody took
    alignas(64) std::atomic<uint64_t> done = 0;   // the last region whose share the thread finished
    std::thread thread;
  };

  explicit ThreadPool(int size) : size_(size), workers_(static_cast<size_t>(size - 1)) {}
  void run_shares(Call call, void* task);
  void finish(Worker& worker, int share, uint64_t region);
  void work(Worker& worker, int share);
  void wake();
  void sleep(uint64_t seen);

  alignas(64) std::atomic<uint64_t> region_ = 0;  // counts runs; on one line with what a thread needs next
  Call call_ = nullptr;                           // of this region; written before region_
  void* task_ = nullptr;
  alignas(64) std::atomic<int> sleepers_ = 0;
  std::atomic<bool> stop_ = false;
  const int size_;
  std::mutex mutex_;
  std::condition_variable awake_;
  std::vector<Worker> workers_;
};

}  // namespace ddtree
