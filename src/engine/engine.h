// Engine: an EngineCore on a thread of its own. Other threads reach it through one bounded queue of commands; it
// answers through each request's event sink. It sleeps when idle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/engine_core.h"

namespace ddtree {

class Engine {
 public:
  explicit Engine(std::unique_ptr<EngineCore> core);
  ~Engine();  // cancels what still runs; every sink gets its last event before this returns

  // Thread-safe. An error is final: the sink is never called. Otherwise the sink gets events up to one whose finish is
  // not kNone.
  Result<RequestId> submit(Request request, EventSink sink);
  // Thread-safe; takes effect before the next step. Unknown ids are ignored.
  void cancel(RequestId id);

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

  std::unique_ptr<EngineCore> core_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Submit> submits_;     // guarded by mutex_
  std::vector<RequestId> cancels_;  // guarded by mutex_; each at most once, and none may be lost
  bool stop_ = false;               // guarded by mutex_
  std::atomic<RequestId> next_id_{1};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ddtree
