// Where a request's tokens come from: the engine; in tests, a script.
#pragma once

#include <utility>

#include "engine/engine.h"

namespace ddtree {

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  // As Engine's, thread-safe both.
  virtual Result<RequestId> submit(Request request, EventSink sink) = 0;
  virtual void cancel(RequestId id) = 0;
};

class EngineSource final : public TokenSource {
 public:
  explicit EngineSource(Engine& engine) : engine_(&engine) {}
  Result<RequestId> submit(Request request, EventSink sink) override {
    return engine_->submit(std::move(request), std::move(sink));
  }
  void cancel(RequestId id) override { engine_->cancel(id); }

 private:
  Engine* engine_;
};

}  // namespace ddtree
