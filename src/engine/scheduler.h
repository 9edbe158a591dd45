// Scheduler: who runs in the next step. Policy only: it knows counts and page ids, no device, no clock, no threads.
//
// First come, first served, with continuous batching: every running stream decodes in every step, prompts are run in
// chunks beside them. When pages run out the youngest running stream gives up its own and waits at the head of the
// queue; its rows are computed again later, to the same bits. The oldest stream is never preempted for a younger one,
// so it always finishes.
//
// With prefix reuse, committed pages stay until their room is needed. A text whose beginning is just being computed for
// another waits for it, so that it is computed once.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "engine/page_pool.h"
#include "engine/prefix_cache.h"
#include "engine/stream.h"

namespace ddtree {

struct SchedulerOptions {
  int32_t max_streams = 16;     // running at once
  int32_t max_waiting = 256;    // beyond them
  int32_t max_rows = 1088;      // of one step
  int32_t prefill_rows = 512;   // at most so many of them prompt
  bool reuse_prefixes = false;  // keep committed pages for texts that begin alike
};

struct PlanItem {
  Stream* stream = nullptr;
  int32_t chunk = 0;      // prompt rows to run; 0: decode
  bool emits = false;     // the chunk ends the prompt: its last row gives the first token
  int32_t max_depth = 0;  // decode: deepest useful node
};

struct Plan {
  std::vector<PlanItem> items;
  int32_t tree_rows = 0;  // rows that the decoding streams' trees may use together, roots included
};

class Scheduler {
 public:
  Scheduler(PagePool& pool, const SchedulerOptions& options);

  // Queues a stream. kInvalidArgument: it could never fit; kExhausted: the queue is full.
  Status submit(std::unique_ptr<Stream> stream);
  void cancel_all();
  void cancel(RequestId id);  // unknown ids are ignored: the request may just have ended

  // Removes the streams that were cancelled since the last call; their pages and slots are free again.
  std::vector<std::unique_ptr<Stream>> take_cancelled();

  // Called for every stream that is about to run, before its beginning is looked up: who decides whether the drafter
  // follows it.
  void before_admission(std::function<void(Stream&)> decide) { before_admission_ = std::move(decide); }

  // Chooses the next step's work and gives every chosen stream its slot and pages.
  Plan plan();
  void forget_prefixes() { prefixes_.clear(); }  // after a failure of the device: nothing in memory can be trusted
  // Ends a running stream; its pages and slot are free again.
  std::unique_ptr<Stream> finish(Stream* stream);

  bool idle() const { return running_.empty() && waiting_.empty(); }
  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t available_pages() const { return pool_.free_pages() + prefixes_.evictable(); }
  void check() const;  // every page and slot has exactly its owners

 private:
  bool secure(Stream& stream, int32_t rows);
  void preempt_youngest();
  void admit();
  bool admit(Stream& stream);
  void reuse_prefix(Stream& stream);
  bool sibling_computes(const Stream& stream) const;
  void publish(Stream& stream);
  void give_up(Stream& stream);
  PlanItem next_work(Stream& stream, int32_t& prefill_left);

  PagePool& pool_;
  PrefixCache prefixes_;
  SchedulerOptions options_;
  std::function<void(Stream&)> before_admission_;
  std::vector<std::unique_ptr<Stream>> running_;  // in order of admission
  std::deque<std::unique_ptr<Stream>> waiting_;
  std::vector<int32_t> free_slots_;
};

}  // namespace ddtree
