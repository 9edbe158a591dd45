#include "engine/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/batch.h"
#include "base/checked.h"

namespace ddtree {
namespace {

int32_t pages_for(int64_t rows) { return static_cast<int32_t>(ceil_div(rows, kPageRows)); }

}  // namespace

Scheduler::Scheduler(PagePool& pool, const SchedulerOptions& options)
    : pool_(pool), prefixes_(pool), options_(options) {
  CHECK_GT(options.max_streams, 0);
  CHECK_GT(options.prefill_rows, 0);
  CHECK_GE(options.max_rows, options.max_streams + options.prefill_rows);
  for (int32_t slot = options.max_streams - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Status Scheduler::submit(std::unique_ptr<Stream> stream) {
  const int64_t need = int64_t{stream->prompt_length()} + stream->request.max_tokens;
  const int64_t room = int64_t{pool_.size()} * kPageRows;
  if (need > room)
    return Error{Code::kInvalidArgument,
                 "prompt (" + std::to_string(stream->prompt_length()) + " tokens) and max_tokens (" +
                     std::to_string(stream->request.max_tokens) + ") together exceed the KV cache's " +
                     std::to_string(room) +
                     " tokens; shorten the prompt, lower max_tokens, or start with a larger cache"};
  if (waiting() >= options_.max_waiting)
    return Error{Code::kExhausted,
                 "the queue already holds " + std::to_string(waiting()) + " requests; try again later"};
  waiting_.push_back(std::move(stream));
  return {};
}

void Scheduler::cancel(RequestId id) {
  for (auto& stream : running_)
    if (stream->id == id) stream->cancelled = true;
  for (auto& stream : waiting_)
    if (stream->id == id) stream->cancelled = true;
}

void Scheduler::cancel_all() {
  for (auto& stream : running_) stream->cancelled = true;
  for (auto& stream : waiting_) stream->cancelled = true;
}

std::vector<std::unique_ptr<Stream>> Scheduler::take_cancelled() {
  std::vector<std::unique_ptr<Stream>> out;
  const auto take = [&](auto& queue) {
    for (auto& stream : queue) {
      if (!stream->cancelled) continue;
      give_up(*stream);
      out.push_back(std::move(stream));
    }
    std::erase_if(queue, [](const auto& stream) { return stream == nullptr; });
  };
  take(running_);
  take(waiting_);
  return out;
}

std::unique_ptr<Stream> Scheduler::finish(Stream* stream) {
  const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& s) { return s.get() == stream; });
  CHECK(it != running_.end());
  give_up(*stream);
  std::unique_ptr<Stream> out = std::move(*it);
  running_.erase(it);
  return out;
}

Plan Scheduler::plan() {
  for (const auto& stream : running_) publish(*stream);
  admit();
  Plan plan;
  int32_t prefill_left = options_.prefill_rows;
  for (size_t i = 0; i < running_.size(); ++i) {  // preemption only shortens the tail beyond i, or removes i itself
    Stream& stream = *running_[i];
    PlanItem item = next_work(stream, prefill_left);
    if (item.chunk == 0 && stream.prefilling()) continue;                           // no prompt rows left in this step
    if (item.max_depth > 0 && !secure(stream, stream.length() + item.max_depth)) {  // drafts take no one's pages
      const int32_t held = static_cast<int32_t>(stream.pages.size()) * kPageRows;
      item.max_depth = std::max(0, held - stream.length());
    }
    const int32_t rows = item.chunk > 0 ? stream.computed + item.chunk : stream.length() + item.max_depth;
    bool kept = true;
    while (kept && !secure(stream, rows)) {
      kept = running_.back().get() != &stream;
      CHECK(kept || running_.size() > 1);  // alone it always fits: submit() checked
      preempt_youngest();
    }
    if (kept) plan.items.push_back(item);
  }
  plan.tree_rows = options_.max_rows - (options_.prefill_rows - prefill_left);
  return plan;
}

PlanItem Scheduler::next_work(Stream& stream, int32_t& prefill_left) {
  PlanItem item;
  item.stream = &stream;
  if (stream.prefilling()) {
    item.chunk = std::min(prefill_left, stream.prefill_end() - stream.computed);
    item.emits =
        item.chunk > 0 && stream.output_length() == 0 && stream.computed + item.chunk == stream.prompt_length();
    prefill_left -= item.chunk;
  } else if (stream.can_draft()) {
    item.max_depth = std::min(stream.remaining() - 1, stream.draft_depth);
  }
  return item;
}

bool Scheduler::secure(Stream& stream, int32_t rows) {
  const int32_t pages = pages_for(rows);
  if (pool_.extend(stream.pages, pages).ok()) return true;
  prefixes_.evict(pages - static_cast<int32_t>(stream.pages.size()) - pool_.free_pages());
  if (pool_.extend(stream.pages, pages).ok()) return true;
  if (running() > 1) return false;
  prefixes_.clear();  // a lone stream gets all there is: it may stand beneath pages that others left
  return pool_.extend(stream.pages, pages).ok();
}

void Scheduler::preempt_youngest() {
  std::unique_ptr<Stream> stream = std::move(running_.back());
  running_.pop_back();
  give_up(*stream);
  ++stream->stats.preemptions;
  stream->follow_decided = false;
  waiting_.push_front(std::move(stream));
}

void Scheduler::admit() {
  while (!waiting_.empty() && !free_slots_.empty() && admit(*waiting_.front())) {
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

// The head of the queue runs as soon as a slot and the pages of its prompt are free, with a page to spare for each
// running stream.
bool Scheduler::admit(Stream& stream) {
  if (before_admission_ && !std::exchange(stream.follow_decided, true)) before_admission_(stream);
  if (options_.reuse_prefixes && sibling_computes(stream)) return false;
  reuse_prefix(stream);
  const int32_t pages = pages_for(stream.prefill_end()) - static_cast<int32_t>(stream.pages.size());
  const int32_t spare = running_.empty() ? 0 : running() + 1;
  const bool room = pages + spare <= pool_.free_pages() || pages + spare <= available_pages();  // the latter counts
  if (!room || !secure(stream, stream.prefill_end())) {
    give_up(stream);
    return false;
  }
  if (stream.output_length() == 0) stream.stats.cached_tokens = stream.computed;
  stream.slot = free_slots_.back();
  free_slots_.pop_back();
  return true;
}

// All of a text but its last token, whose row gives the next one.
void Scheduler::reuse_prefix(Stream& stream) {
  if (!options_.reuse_prefixes) return;
  const std::span<const int32_t> tokens = std::span(stream.tokens).first(stream.length() - 1);
  prefixes_.take(stream.request.cache_salt, tokens, stream.observes(), stream.pages);
  stream.published = static_cast<int32_t>(stream.pages.size());
  stream.computed = stream.published * kPageRows;
  if (stream.observes()) stream.observed = stream.computed;
}

// Whether a running stream is about to compute more of this text's beginning than is known.
bool Scheduler::sibling_computes(const Stream& stream) const {
  const std::span<const int32_t> tokens = std::span(stream.tokens).first(stream.length() - 1);
  const Request& request = stream.request;
  const int64_t known = prefixes_.count(request.cache_salt, tokens, stream.observes());
  return std::any_of(running_.begin(), running_.end(), [&](const auto& other) {
    if (!other->prefilling() || other->request.cache_salt != request.cache_salt) return false;
    if (stream.observes() && !other->observes()) return false;
    const std::span<const int32_t> theirs = std::span(other->tokens).first(other->prefill_end());
    const int64_t common =
        std::mismatch(tokens.begin(), tokens.end(), theirs.begin(), theirs.end()).first - tokens.begin();
    return common / kPageRows > known;
  });
}

void Scheduler::publish(Stream& stream) {
  if (!options_.reuse_prefixes) return;
  const int32_t whole = std::min(stream.computed, stream.length()) / kPageRows;  // a stop cuts tokens, not rows
  const int32_t observed = std::min(whole, stream.observed / kPageRows);
  const int32_t ready = stream.observes() ? observed : whole;
  if (ready <= stream.published) return;
  stream.published = ready;
  prefixes_.put(stream.request.cache_salt, std::span(stream.tokens).first(int64_t{ready} * kPageRows),
                std::span(stream.pages).first(ready), observed);
}

void Scheduler::give_up(Stream& stream) {
  publish(stream);
  pool_.release(stream.pages);
  stream.computed = stream.observed = stream.published = 0;
  if (stream.slot >= 0) free_slots_.push_back(stream.slot);
  stream.slot = -1;
}

void Scheduler::check() const {
  std::vector<const std::vector<int32_t>*> lists;
  std::vector<int32_t> slots = free_slots_;
  for (const auto& stream : running_) {
    lists.push_back(&stream->pages);
    CHECK_LE(stream->published, static_cast<int32_t>(stream->pages.size()));
    slots.push_back(stream->slot);
    CHECK_LE(stream->computed, static_cast<int64_t>(stream->pages.size()) * kPageRows);
    CHECK_LT(stream->computed, stream->length());
    CHECK_LE(stream->observed, stream->computed);
  }
  for (const auto& stream : waiting_) CHECK(stream->pages.empty() && stream->slot == -1 && stream->computed == 0);
  const std::vector<int32_t> kept = prefixes_.pages();
  lists.push_back(&kept);
  const Status pages = pool_.check(lists);
  CHECK_EQ(pages.ok() ? "" : pages.error().message, "");
  std::sort(slots.begin(), slots.end());
  CHECK_EQ(static_cast<int32_t>(slots.size()), options_.max_streams);
  for (int32_t i = 0; i < options_.max_streams; ++i) CHECK_EQ(slots[i], i);
}

}  // namespace ddtree
