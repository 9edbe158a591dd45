#include "server/engine_gate.h"

namespace ddtree {

Result<RequestId> EngineGate::submit(Request request, EventSink sink) {
  const std::lock_guard lock(mutex_);
  if (!engine_) return Error{Code::kExhausted, "the engine is not running; try again later"};
  return engine_->submit(std::move(request), std::move(sink));
}

void EngineGate::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (engine_) engine_->cancel(id);
}

EngineLoad EngineGate::load() const {
  const std::lock_guard lock(mutex_);
  return engine_ ? engine_->load() : last_;
}

void EngineGate::open(std::unique_ptr<Engine> engine) {
  const std::lock_guard lock(mutex_);
  engine_ = std::move(engine);
}

void EngineGate::close() {
  std::unique_ptr<Engine> engine;
  {
    const std::lock_guard lock(mutex_);
    engine = std::move(engine_);
    if (engine) last_ = engine->load();
    last_.running = last_.waiting = 0;
  }
  engine.reset();  // outside the lock: its sinks cancel their siblings
}

}  // namespace ddtree
