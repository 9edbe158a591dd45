// Engine: an EngineCore on a thread of its own. Other threads reach it through one bounded queue of commands; it
// answers through each request's event sink. It sleeps when idle.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine_core.h"

namespace ddtree {

// What an engine is doing, as of the beginning of the step that runs, or of its last rest.
struct EngineLoad {
  int32_t running = 0, waiting = 0;     // requests
  int32_t pages = 0, unused_pages = 0;  // what the prefix cache keeps is in use
  StepTotals totals;
  std::chrono::steady_clock::time_point since;  // when that was

  bool busy() const { return running + waiting > 0; }
};

class Engine {
 public:
  explicit Engine(std::unique_ptr<EngineCore> core);
  ~Engine();  // cancels what still runs; every sink gets its last event before this returns

  // Thread-safe. An error is final: the sink is never called. Otherwise the sink gets events up to one whose finish is
  // not kNone.
  Result<RequestId> submit(Request request, EventSink sink);
  // Thread-safe; takes effect before the next step. Unknown ids are ignored.
  void cancel(RequestId id);
  // Thread-safe.
  EngineLoad load() const;

 private:
  static constexpr size_t kMaxSubmits = 4096;  // not yet taken over by the engine's thread

  struct Submit {
    RequestId id;
    Request request;
    EventSink sink;
  };

  void loop();
  bool take_commands(bool wait);
  void execute(Submit& submit);
  EngineLoad measure();

  std::unique_ptr<EngineCore> core_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Submit> submits_;     // guarded by mutex_
  std::vector<RequestId> cancels_;  // guarded by mutex_; each at most once, and none may be lost
  bool stop_ = false;               // guarded by mutex_
  EngineLoad load_;                 // guarded by mutex_
  std::atomic<RequestId> next_id_{1};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ddtree
