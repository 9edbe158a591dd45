// Stream: one request on its way through the engine. Owned by the scheduler; only the engine's thread touches it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/policy.h"
#include "engine/request.h"

namespace ddtree {

struct Stream {
  RequestId id = 0;
  Request request;
  EventSink sink;
  int32_t draft_depth = 0;  // deepest node worth drafting; 0: this stream never drafts
  int32_t draft_limit = 0;  // committed tokens beyond which the drafter's context has no room for a block

  std::vector<int32_t> tokens;  // prompt, then output; the last may not be in the cache yet
  int32_t computed = 0;         // tokens whose rows are in the pages
  int32_t observed = 0;         // of those, rows whose taps the drafter has seen; the others wait in the tap ring
  int32_t slot = -1;            // of the cache's scratch and tap ring; −1 while waiting
  std::vector<int32_t> pages;
  int32_t published = 0;  // of the pages, from the first on: those that the prefix cache has been told of
  bool cancelled = false;

  DraftMemory memory;           // mode auto: what the policy knows of it
  bool follows = true;          // the drafter has, or will get, all of the text; if not, this stream drafts no more
  bool follow_decided = false;  // mode auto: since it last began to wait

  RequestStats stats;
  std::vector<StepRecord> trace;

  int32_t length() const { return static_cast<int32_t>(tokens.size()); }
  int32_t prompt_length() const { return static_cast<int32_t>(request.prompt.size()); }
  int32_t output_length() const { return length() - prompt_length(); }
  int32_t remaining() const { return request.max_tokens - output_length(); }
  // Rows to run as prompt: all of a fresh prompt; after a preemption everything but the last token, which is a root
  // again.
  int32_t prefill_end() const { return std::max(prompt_length(), length() - 1); }
  bool can_draft() const { return follows && draft_depth > 0 && computed <= draft_limit; }
  // Whether the drafter sees the rows of its prompt, for drafts to come.
  bool observes() const { return follows && draft_depth > 0 && prefill_end() <= draft_limit; }
  bool is_auto() const { return draft_depth > 0 && request.spec.mode == SpecMode::kAuto; }
  bool prefilling() const { return computed < prefill_end(); }
};

}  // namespace ddtree
