#include "engine/engine_core.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/checked.h"

namespace ddtree {
namespace {

constexpr int64_t kMaxCacheTokens = int64_t{1} << 30;  // rows are counted in int32, scratch included

// Whether the text ends with this token: one of the model's or the request's end tokens, or the request says so.
bool ends_text(const Request& request, int32_t token) {
  const std::vector<int32_t>& ids = request.sampling.stop_ids;
  return std::find(ids.begin(), ids.end(), token) != ids.end() || (request.stops && request.stops(token));
}

// Why a request will not be speculated; empty if it will.
std::string why_not(const Request& request, const BlockDrafter* drafter) {
  if (request.spec.mode == SpecMode::kOff) return "the request turned speculation off";
  if (drafter == nullptr) return "no drafter is loaded";
  if (request.spec.budget == 0) return "the request's budget is 0";
  return {};
}

// What was done, in place of what was asked for.
RequestStats final_stats(const Stream& stream) {
  RequestStats stats = stream.stats;
  stats.output_tokens = stream.output_length();
  if (stats.drafted == 0) stats.effective_mode = spec_mode_name(SpecMode::kOff);
  if (!stats.not_speculating.empty()) return stats;
  const DraftDecision& last = stream.memory.decision;
  if (stream.is_auto()) stats.decision = explain(last);
  if (stream.length() - 1 > stream.draft_limit) {
    stats.not_speculating =
        "the drafter's context has no room beyond " + std::to_string(stream.draft_limit) + " tokens";
  } else if (last.reason != DraftReason::kNone && !drafts(last.reason)) {
    stats.not_speculating = stats.decision;
  } else if (stats.drafted == 0) {
    stats.not_speculating = "the text ended before a drafted token could count";
  }
  return stats;
}

}  // namespace

Result<std::unique_ptr<EngineCore>> EngineCore::create(Backend& backend, Decoder& decoder, BlockDrafter* drafter,
                                                       const EngineOptions& options) {
  if (options.max_budget < 0 || options.max_budget > kMaxNodes)
    return Error{Code::kInvalidArgument,
                 "max_budget: " + std::to_string(options.max_budget) + " is outside 0 … " + std::to_string(kMaxNodes)};
  const int64_t tokens = options.cache_tokens > 0 ? options.cache_tokens : options.max_context;
  if (tokens > kMaxCacheTokens)
    return Error{Code::kInvalidArgument,
                 "cache_tokens: " + std::to_string(tokens) + " is more than " + std::to_string(kMaxCacheTokens)};
  KvCacheShape shape;
  shape.pages = static_cast<int32_t>(ceil_div(tokens, kPageRows));
  shape.streams = options.scheduler.max_streams;
  shape.layers = decoder.layers();
  shape.width = decoder.kv_width();
  shape.scratch_rows = options.max_budget + 1;
  if (drafter != nullptr) {
    shape.draft_layers = drafter->layers();
    shape.draft_width = drafter->kv_width();
    shape.draft_scratch_rows = drafter->block_size();
  }
  TRY_ASSIGN(KvCache cache, KvCache::create(backend, shape));
  std::unique_ptr<EngineCore> core(new EngineCore(options, std::move(cache), decoder.vocab_size(), drafter));
  TRY_ASSIGN(core->step_, Step::create(backend, decoder, drafter, core->cache_, options.scheduler, options.step_prior));
  core->scheduler_.before_admission([step = core->step_.get(), scheduler = &core->scheduler_](Stream& stream) {
    step->decide_follow(stream, scheduler->running() + 1);
  });
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
  stream->stats.effective_mode = spec_mode_name(request.spec.mode);
  if (stream->stats.not_speculating.empty()) {
    stream->draft_depth = std::min({request.spec.budget, drafter_->slots(), kMaxDepth});
    stream->draft_limit = drafter_->max_position() - drafter_->block_size();
  }
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
// path too, and whatever failed behind that place.
void EngineCore::apply(Outcome& outcome) {
  Stream* stream = outcome.stream;
  Event event;
  event.request = stream->id;
  for (OutputToken& token : outcome.tokens) {
    stream->tokens.push_back(token.id);
    stream->stats.logits_hash = (stream->stats.logits_hash ^ token.row_hash) * kHashPrime;
    const bool stops = ends_text(stream->request, token.id);
    event.tokens.push_back(std::move(token));
    if (stops || stream->remaining() == 0) {
      event.finish = stops ? FinishReason::kStop : FinishReason::kLength;
      return end(stream, std::move(event));
    }
  }
  if (!outcome.status.ok()) {
    event.finish = FinishReason::kError;
    event.error = outcome.status.error();
    return end(stream, std::move(event));
  }
  if (!event.tokens.empty()) stream->sink(std::move(event));
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
  scheduler_.forget_prefixes();
}

}  // namespace ddtree
