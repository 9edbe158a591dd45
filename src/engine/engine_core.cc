#include "engine/engine_core.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.h"

namespace ddtree {
namespace {

bool contains(std::span<const int32_t> ids, int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

// Why a stream does not speculate from the start; empty if it does.
std::string why_not(const Request& request, const BlockDrafter* drafter) {
  if (request.spec.mode == SpecMode::kOff) return "the request turned speculation off";
  if (drafter == nullptr) return "no drafter is loaded";
  if (request.spec.budget == 0) return "the request's budget is 0";
  return {};
}

RequestStats final_stats(const Stream& stream) {
  RequestStats stats = stream.stats;
  stats.output_tokens = stream.output_length();
  return stats;
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(Backend& backend, Decoder& decoder, BlockDrafter* drafter,
                                                       const EngineOptions& options) {
  const int64_t tokens = options.cache_tokens > 0 ? options.cache_tokens : options.max_context;
  KvCacheShape shape;
  shape.pages = static_cast<int32_t>(ceil_div(tokens, kPageRows));
  shape.streams = options.scheduler.max_streams;
  shape.layers = decoder.layers();
  shape.width = decoder.kv_width();
  shape.scratch_rows = std::clamp(options.max_budget, 0, kMaxNodes) + 1;
  if (drafter != nullptr) {
    shape.draft_layers = drafter->layers();
    shape.draft_width = drafter->kv_width();
    shape.draft_scratch_rows = drafter->block_size();
  }
  TRY_ASSIGN(KvCache cache, KvCache::create(backend, shape));
  std::unique_ptr<EngineCore> core(new EngineCore(options, std::move(cache), decoder.vocab_size(), drafter));
  TRY_ASSIGN(core->step_, Step::create(backend, decoder, drafter, core->cache_, options.scheduler));
  return core;
}

EngineCore::EngineCore(const EngineOptions& options, KvCache cache, int32_t vocab, BlockDrafter* drafter)
    : options_(options),
      cache_(std::move(cache)),
      vocab_(vocab),
      context_(std::min(options.max_context, cache_.capacity_rows())),
      drafter_(drafter),
      scheduler_(cache_.pool(), options.scheduler) {}

Status EngineCore::validate(const Request& request) const {
  const auto invalid = [](std::string message) { return Error{Code::kInvalidArgument, std::move(message)}; };
  if (request.prompt.empty()) return invalid("prompt: it is empty; give at least one token");
  if (std::ssize(request.prompt) >= context_)
    return invalid("prompt: its " + std::to_string(request.prompt.size()) + " tokens leave no room in the context of " +
                   std::to_string(context_) + " tokens; shorten it");
  const auto check_ids = [&](std::span<const int32_t> ids, const char* field) -> Status {
    for (int32_t id : ids)
      if (id < 0 || id >= vocab_)
        return invalid(std::string(field) + ": token " + std::to_string(id) + " is outside the vocabulary, 0 … " +
                       std::to_string(vocab_ - 1));
    return {};
  };
  TRY(check_ids(request.prompt, "prompt"));
  TRY(check_ids(request.stop_ids, "stop_token_ids"));
  if (request.max_tokens < 1) return invalid("max_tokens: " + std::to_string(request.max_tokens) + " is below 1");
  if (request.choice < 0) return invalid("choice: " + std::to_string(request.choice) + " is negative");
  if (request.spec.budget < 0 || request.spec.budget > options_.max_budget)
    return invalid("budget: " + std::to_string(request.spec.budget) + " is outside 0 … " +
                   std::to_string(options_.max_budget));
  return ddtree::validate(request.sampling, vocab_);
}

Status EngineCore::submit(RequestId id, Request request, EventSink sink) {
  auto stream = std::make_unique<Stream>();
  stream->id = id;
  stream->sink = std::move(sink);
  request.max_tokens = std::min(request.max_tokens, context_ - static_cast<int32_t>(request.prompt.size()));
  request.sampling.stop_ids = request.stop_ids;
  if (!request.ignore_eos)
    request.sampling.stop_ids.insert(request.sampling.stop_ids.end(), options_.eos_ids.begin(), options_.eos_ids.end());
  stream->tokens = request.prompt;
  stream->stats.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  stream->stats.not_speculating = why_not(request, drafter_);
  const bool drafts = stream->stats.not_speculating.empty();
  stream->stats.effective_mode = spec_mode_name(drafts ? request.spec.mode : SpecMode::kOff);
  stream->draft_limit = drafts ? drafter_->max_position() : 0;
  stream->request = std::move(request);
  return scheduler_.submit(std::move(stream));
}

void EngineCore::cancel(RequestId id) { scheduler_.cancel(id); }
void EngineCore::cancel_all() { scheduler_.cancel_all(); }

bool EngineCore::step() {
  send_cancelled();
  if (scheduler_.idle()) return false;
  const Plan plan = scheduler_.plan();
  CHECK(!plan.items.empty());  // the oldest stream can always run
  if (const Status status = step_->run(plan, outcomes_); !status.ok()) {
    fail_all(status.error());
    return true;
  }
  for (Outcome& outcome : outcomes_) apply(outcome);
  return true;
}

// Stops act on committed tokens in order, so a text ends where plain decoding would have ended it, inside an accepted
// path too.
void EngineCore::apply(Outcome& outcome) {
  Stream* stream = outcome.stream;
  Event event;
  event.request = stream->id;
  if (!outcome.status.ok()) {
    event.finish = FinishReason::kError;
    event.error = outcome.status.error();
    return end(stream, std::move(event));
  }
  for (OutputToken& token : outcome.tokens) {
    stream->tokens.push_back(token.id);
    stream->stats.logits_hash = (stream->stats.logits_hash ^ token.row_hash) * 0x100000001b3u;
    const bool stops = ends_text(*stream, token.id);
    event.tokens.push_back(std::move(token));
    if (stops)
      event.finish = FinishReason::kStop;
    else if (stream->remaining() == 0)
      event.finish = FinishReason::kLength;
    if (event.finish != FinishReason::kNone) return end(stream, std::move(event));
  }
  if (stream->draft_limit > 0 && !stream->prefilling() &&
      stream->computed + drafter_->block_size() > stream->draft_limit)
    stream->stats.not_speculating = "the drafter's context ends at " + std::to_string(stream->draft_limit) + " tokens";
  if (!event.tokens.empty()) stream->sink(std::move(event));
}

bool EngineCore::ends_text(const Stream& stream, int32_t token) const {
  return contains(stream.request.stop_ids, token) || (!stream.request.ignore_eos && contains(options_.eos_ids, token));
}

void EngineCore::end(Stream* stream, Event event) {
  const std::unique_ptr<Stream> ended = scheduler_.finish(stream);
  event.stats = final_stats(*ended);
  event.trace = std::move(ended->trace);
  ended->sink(std::move(event));
}

void EngineCore::send_cancelled() {
  for (const std::unique_ptr<Stream>& stream : scheduler_.take_cancelled()) {
    Event event;
    event.request = stream->id;
    event.finish = FinishReason::kCancelled;
    event.stats = final_stats(*stream);
    event.trace = std::move(stream->trace);
    stream->sink(std::move(event));
  }
}

void EngineCore::fail_all(const Error& error) {
  scheduler_.cancel_all();
  for (const std::unique_ptr<Stream>& stream : scheduler_.take_cancelled()) {
    Event event;
    event.request = stream->id;
    event.finish = FinishReason::kError;
    event.error = error;
    event.stats = final_stats(*stream);
    stream->sink(std::move(event));
  }
}

}  // namespace ddtree
