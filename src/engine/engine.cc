#include "engine/engine.h"

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
    if (commands_.size() >= kMaxCommands)
      return Error{Code::kExhausted,
                   "the engine has " + std::to_string(commands_.size()) + " commands waiting; try again later"};
    commands_.push_back(Submit{id, std::move(request), std::move(sink)});
  }
  wake_.notify_one();
  return id;
}

void Engine::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    commands_.push_back(
        Cancel{id});  // unbounded on purpose: a cancellation must not be lost, and there is at most one a request
  }
  wake_.notify_one();
}

void Engine::loop() {
  while (take_commands(core_->idle())) core_->step();
  core_->cancel_all();
  core_->step();
}

// Takes over what other threads sent; with `wait`, sleeps until there is something. False when the engine is to stop.
bool Engine::take_commands(bool wait) {
  std::vector<Command> commands;
  bool go_on;
  {
    std::unique_lock lock(mutex_);
    if (wait) wake_.wait(lock, [this] { return stop_ || !commands_.empty(); });
    commands.swap(commands_);
    go_on = !stop_;
  }
  for (Command& command : commands) {
    if (Submit* submit = std::get_if<Submit>(&command)) {
      execute(*submit);
    } else {
      core_->cancel(std::get<Cancel>(command).id);
    }
  }
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
