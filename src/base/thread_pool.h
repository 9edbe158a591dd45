// ThreadPool: fork-join over a fixed set of threads, for regions of a few microseconds. A region may have stages: then
// the threads meet between them, which is cheaper than ending one region and opening the next.
// Idle threads spin for a moment, then sleep: an idle process burns nothing. When a thread is late (asleep, or its core
// was given to another process), the caller takes its shares.
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

  // For each stage in turn, calls stage(share) once for every share in [0, size()); no share of a stage begins before
  // all of the one before have returned. Share 0 runs on the caller; a share keeps its thread through the stages but
  // for the caller's help. Returns when all is done. One run at a time; no run inside a run.
  template <class... Tasks>
  void run(Tasks&&... tasks) {
    const Stage stages[] = {
        {[](void* task, int share) { (*static_cast<std::remove_reference_t<Tasks>*>(task))(share); },
         const_cast<void*>(static_cast<const void*>(&tasks))}...};
    run_stages(stages, sizeof...(Tasks));
  }

 private:
  struct Stage {
    void (*call)(void* task, int share);
    void* task;
  };

  // One thread, on cache lines of its own: others read `done` while they wait, and the caller looks at `taken` only
  // when the thread is late, so that a thread that is on time takes its shares without waiting for a cache line.
  struct Worker {
    alignas(64) std::atomic<uint64_t> taken = 0;  // the last region whose shares somebody took: it, or the caller
    alignas(64) std::atomic<uint64_t> done = 0;   // how many stages its share has finished, counted over all regions
    std::thread thread;
  };

  explicit ThreadPool(int size)
      : size_(size), workers_(static_cast<size_t>(size)), helped_(static_cast<size_t>(size)) {}
  void run_stages(const Stage* stages, int count);
  void help(int share, const Stage& stage, uint64_t region, uint64_t finished);
  void wait_for(uint64_t finished) const;
  void work(int share);
  void take_part(int share);
  void wake();
  void sleep(uint64_t seen);

  Worker& worker(int share) { return workers_[static_cast<size_t>(share)]; }

  alignas(64) std::atomic<uint64_t> region_ = 0;  // counts runs; on one line with what a thread needs next
  const Stage* stages_ = nullptr;                 // of this region; written before region_
  int stage_count_ = 0;
  uint64_t stages_before_ = 0;  // stages of all regions before this one
  alignas(64) std::atomic<int> sleepers_ = 0;
  std::atomic<bool> stop_ = false;
  const int size_;
  std::mutex mutex_;
  std::condition_variable awake_;
  std::vector<Worker> workers_;  // by share; the first is the caller
  std::vector<char> helped_;     // by share: the caller runs it in this region
};

}  // namespace ddtree
