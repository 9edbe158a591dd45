// EngineGate: the engine as the server's threads see it, from before it is there until after it is gone.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "engine/engine.h"
#include "server/token_source.h"

namespace ddtree {

// Thread-safe.
class EngineGate final : public TokenSource {
 public:
  Result<RequestId> submit(Request request, EventSink sink) override;
  void cancel(RequestId id) override;
  EngineLoad load() const;

  void open(std::unique_ptr<Engine> engine);
  void close();  // ends the engine; what runs is cancelled, its sinks called

 private:
  mutable std::mutex mutex_;
  std::unique_ptr<Engine> engine_;  // guarded by mutex_; its last events are sent without it
  EngineLoad last_;                 // of an engine that is gone
};

}  // namespace ddtree
