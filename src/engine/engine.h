// Engine: an EngineCore on a thread of its own. Other threads reach it through one bounded queue of commands; it
// answers through each request's event sink. It sleeps when idle.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <variant>
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
  static constexpr size_t kMaxCommands = 4096;

  struct Submit {
    RequestId id;
    Request request;
    EventSink sink;
  };
  struct Cancel {
    RequestId id;
  };
  using Command = std::variant<Submit, Cancel>;

  void loop();
  bool take_commands(bool wait);
  void execute(Submit& submit);

  std::unique_ptr<EngineCore> core_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Command> commands_;  // guarded by mutex_
  bool stop_ = false;              // guarded by mutex_
  std::atomic<RequestId> next_id_{1};
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace ddtree
