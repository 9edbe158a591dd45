#include "engine/engine.h"

#include <algorithm>
#include <string>
#include <utility>

namespace ddtree {

Engine::Engine(std::unique_ptr<EngineCore> core) : core_(std::move(core)), thread_([this] { loop(); }) {}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

Result<RequestId> Engine::submit(Request request, EventSink sink) {
  TRY(core_->validate(request));
  const RequestId id = next_id_++;
  {
    const std::lock_guard lock(mutex_);
    if (submits_.size() >= kMaxSubmits)
      return Error{Code::kExhausted,
                   "the engine has " + std::to_string(submits_.size()) + " new requests waiting; try again later"};
    submits_.push_back({id, std::move(request), std::move(sink)});
  }
  wake_.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    if (id >= next_id_ || std::find(cancels_.begin(), cancels_.end(), id) != cancels_.end()) return;
    cancels_.push_back(id);
  }
  wake_.notify_one();
}

EngineLoad Engine::load() const {
  const std::lock_guard lock(mutex_);
  EngineLoad load = load_;
  load.waiting += static_cast<int32_t>(submits_.size());
  return load;
}

EngineLoad Engine::measure() {
  const Scheduler& scheduler = core_->scheduler();
  return {scheduler.running(),   scheduler.waiting(), core_->pages(),
          core_->unused_pages(), core_->totals(),     std::chrono::steady_clock::now()};
}

void Engine::loop() {
  while (take_commands(core_->idle())) core_->step();
  core_->cancel_all();
  core_->step();
}

// Takes over what other threads sent; with `wait`, sleeps until there is something. False when the engine is to stop.
bool Engine::take_commands(bool wait) {
  std::vector<Submit> submits;
  std::vector<RequestId> cancels;
  bool go_on;
  {
    std::unique_lock lock(mutex_);
    load_ = measure();
    if (wait) wake_.wait(lock, [this] { return stop_ || !submits_.empty() || !cancels_.empty(); });
    submits.swap(submits_);
    cancels.swap(cancels_);
    go_on = !stop_;
  }
  for (Submit& submit : submits) execute(submit);
  for (RequestId id : cancels) core_->cancel(id);  // after the submits: a cancelled request may be among them
  const std::lock_guard lock(mutex_);
  load_ = measure();
  return go_on;
}

void Engine::execute(Submit& submit) {
  const EventSink sink = submit.sink;
  if (const Status status = core_->submit(submit.id, std::move(submit.request), std::move(submit.sink)); !status.ok()) {
    Event event;
    event.request = submit.id;
    event.finish = FinishReason::kError;
    event.error = status.error();
    sink(std::move(event));
  }
}

}  // namespace ddtree
