// EngineCore: requests in, events out, one step at a time, on one thread. Engine (engine.h) gives it a thread of its
// own.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/step.h"

namespace ddtree {

struct EngineOptions {
  SchedulerOptions scheduler;
  int64_t cache_tokens = 0;        // KV rows of all streams together; 0: one full context
  int32_t max_context = 0;         // prompt and output of one request; at most the model's
  int32_t max_budget = kMaxNodes;  // largest tree a request may ask for
  std::vector<int32_t> eos_ids;    // the model's own end tokens
  StepPrior step_prior;            // where mode auto starts; see step_prior.h
};

class EngineCore {
 public:
  // `drafter` may be null: nothing is speculated then. All must outlive the engine.
  static Result<std::unique_ptr<EngineCore>> create(Backend& backend, Decoder& decoder, BlockDrafter* drafter,
                                                    const EngineOptions& options);

  // Whether a request can be served at all; thread-safe. max_tokens beyond the context is not an error: the text ends
  // there.
  Status validate(const Request& request) const;

  // The request must have passed validate(). kExhausted when the queue is full.
  Status submit(RequestId id, Request request, EventSink sink);
  void cancel(RequestId id);
  void cancel_all();

  // Runs one step and sends its events. False when there is nothing to do.
  bool step();
  bool idle() const { return scheduler_.idle(); }

  const Scheduler& scheduler() const { return scheduler_; }
  const StepTotals& totals() const { return step_->totals(); }
  const Policy& policy() const { return step_->policy(); }
  int32_t free_pages() const { return scheduler_.available_pages(); }  // those of the prefix cache included
  int32_t pages() { return cache_.pool().size(); }
  int32_t unused_pages() { return cache_.pool().free_pages(); }  // those of the prefix cache not included
  int32_t max_context() const { return context_; }

 private:
  EngineCore(const EngineOptions& options, KvCache cache, int32_t vocab, BlockDrafter* drafter);
  void apply(Outcome& outcome);
  void end(Stream* stream, Event event);
  void fail_all(const Error& error);
  void send_cancelled();

  EngineOptions options_;
  KvCache cache_;
  int32_t vocab_, context_;
  BlockDrafter* drafter_;
  Scheduler scheduler_;
  std::unique_ptr<Step> step_;
  std::vector<Outcome> outcomes_;
};

}  // namespace ddtree
