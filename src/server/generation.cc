#include "server/generation.h"

#include <algorithm>
#include <utility>

#include "server/api_error.h"

namespace ddtree {
namespace {

constexpr std::string_view kDone = "[DONE]";

double milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
}

}  // namespace

void Generation::start(const GenerationContext& context, GenerationPlan plan, StopStrings stops,
                       std::shared_ptr<HttpReply> reply) {
  const int64_t count = std::ssize(plan.prompts) * plan.options.n;
  if (!context.admission.enter(count))
    return send_error(*reply, {429, "queue_full", "too many requests are waiting; try again later", ""});
  const std::shared_ptr<Generation> generation(
      new Generation(context, std::move(plan), std::move(stops), reply, count));
  generation->run();
  reply->on_gone([weak = std::weak_ptr<Generation>(generation)] {
    if (const auto alive = weak.lock()) alive->on_gone();
  });
}

Generation::Generation(const GenerationContext& context, GenerationPlan plan, StopStrings stops,
                       std::shared_ptr<HttpReply> reply, int64_t admitted)
    : context_(context),
      plan_(std::move(plan)),
      stops_(std::move(stops)),
      writer_(context.tokenizer, plan_.head),
      admitted_(admitted),
      reply_(std::move(reply)) {
  make_choices();
}

Generation::~Generation() { context_.admission.leave(admitted_); }

void Generation::make_choices() {
  const GenerationOptions& options = plan_.options;
  const ChoiceTextOptions text = {.skip_special = options.skip_special_tokens,
                                  .include_stop = options.include_stop,
                                  .min_tokens = options.sampling.min_tokens,
                                  .ends_after_call = plan_.ends_after_call};
  choices_.reserve(static_cast<size_t>(admitted_));
  for (const PromptPlan& prompt : plan_.prompts) {
    for (int32_t i = 0; i < options.n; ++i) {
      const int32_t index = static_cast<int32_t>(choices_.size());
      if (plan_.parser) {
        choices_.emplace_back(ChoiceText(context_.tokenizer, stops_, text, *plan_.parser, plan_.begun), index);
      } else {
        choices_.emplace_back(ChoiceText(context_.tokenizer, stops_, text), index);
      }
      ChoiceOutput& begin = choices_.back().total;
      begin.delta.content = prompt.echo;
      if (options.return_token_ids) begin.prompt = prompt.ids;
    }
  }
}

// Events that come meanwhile wait for the mutex, so the reply's beginning is its beginning.
void Generation::run() {
  const std::lock_guard lock(mutex_);
  if (const Status status = submit_all(); !status.ok()) return fail(run_error(status.error()));
  if (plan_.options.stream) begin_stream();
}

Status Generation::submit_all() {
  for (size_t i = 0; i < choices_.size(); ++i) {
    EventSink sink = [self = shared_from_this(), i](Event&& event) { self->on_event(i, std::move(event)); };
    TRY_ASSIGN(choices_[i].id, context_.source.submit(request_of(i), std::move(sink)));
  }
  return {};
}

Request Generation::request_of(size_t index) {
  const GenerationOptions& options = plan_.options;
  Request request;
  request.prompt = plan_.prompts[index / static_cast<size_t>(options.n)].ids;
  request.max_tokens = options.max_tokens.value_or(plan_.max_tokens);
  request.ignore_eos = options.ignore_eos;
  request.stop_ids = options.stop_token_ids;
  request.sampling = options.sampling;
  request.choice = static_cast<int32_t>(index) % options.n;
  request.spec = options.spec;
  request.cache_salt = options.cache_salt;
  request.stops = [self = shared_from_this(), index](int32_t id) { return self->take_token(index, id); };
  return request;
}

void Generation::begin_stream() {
  streaming_ = true;
  reply_->start_stream();
  const Usage running = usage();
  for (Choice& choice : choices_) {
    const ChoiceOutput begin = std::exchange(choice.total, {.index = choice.total.index});
    if (plan_.head.chat) {
      reply_->event(writer_.role_chunk(begin, chunk_extras(running)));
    } else if (!begin.delta.empty() || !begin.prompt.empty()) {
      reply_->event(writer_.chunk(begin, chunk_extras(running)));
    }
  }
}

// On the engine's thread, which alone touches a choice's text.
bool Generation::take_token(size_t index, int32_t id) {
  Choice& choice = choices_[index];
  choice.offsets.push_back(choice.text.characters());
  return choice.text.push(id);
}

void Generation::on_event(size_t index, Event&& event) {
  const std::lock_guard lock(mutex_);
  Choice& choice = choices_[index];
  if (event.stats) choice.stats = *event.stats;
  const bool ends = event.finish != FinishReason::kNone;
  choice.done = ends;
  done_ += ends;
  if (over_) return;
  if (event.finish == FinishReason::kError) return fail(run_error(*event.error));
  if (event.finish == FinishReason::kCancelled)
    return fail({503, "draining", "the server is shutting down; try again later", ""});
  count_time(choice, event.tokens.size());
  ChoiceOutput output = take_output(choice, event);
  const bool last = done_ == choices_.size();
  if (streaming_) {
    send_output(std::move(output), last);
  } else {
    choice.total.append(std::move(output));
  }
  if (last) complete();
}

void Generation::count_time(Choice& choice, size_t tokens) {
  if (tokens == 0) return;
  const Clock::time_point now = Clock::now();
  if (!first_token_) {
    first_token_ = now;
    if (context_.observer) context_.observer->on_first_token(milliseconds(now - start_) / 1000);
  }
  if (choice.last_token && context_.observer)
    context_.observer->on_step(milliseconds(now - *choice.last_token) / 1000, static_cast<int>(tokens));
  choice.last_token = last_token_ = now;
  choice.tokens += static_cast<int64_t>(tokens);
}

// The tokens of a step and the text that they settle. A token that a stop id ended the text with was not shown to
// take_token().
ChoiceOutput Generation::take_output(Choice& choice, Event& event) {
  ChoiceOutput output;
  output.index = choice.total.index;
  const int64_t before = count_characters(plan_.prompts[static_cast<size_t>(output.index / plan_.options.n)].echo);
  std::optional<int32_t> stop_id;
  if (event.tokens.size() > choice.offsets.size()) {
    stop_id = event.tokens.back().id;
    choice.offsets.push_back(choice.text.characters());
    choice.text.push_end(*stop_id);
  }
  for (size_t i = 0; i < event.tokens.size(); ++i)
    output.tokens.push_back({std::move(event.tokens[i]), before + choice.offsets[i]});
  choice.offsets.clear();
  if (event.finish != FinishReason::kNone) {
    choice.text.finish();
    set_finish(choice, output, event.finish, stop_id);
  }
  output.delta = choice.text.take();
  choice.reasoning_tokens = choice.text.reasoning_tokens();
  return output;
}

void Generation::set_finish(Choice& choice, ChoiceOutput& output, FinishReason reason, std::optional<int32_t> stop_id) {
  const std::vector<int32_t>& ids = plan_.options.stop_token_ids;
  if (choice.text.stop_string()) {
    output.stop_reason = stops_.text(*choice.text.stop_string());
    reason = FinishReason::kStop;
  } else if (stop_id && std::find(ids.begin(), ids.end(), *stop_id) != ids.end()) {
    output.stop_reason = *stop_id;
  }
  const bool calls = reason == FinishReason::kStop && choice.text.has_calls();
  outcome_ = output.finish_reason = calls ? "tool_calls" : reason == FinishReason::kStop ? "stop" : "length";
}

// A chat's last words and its finish reason are chunks of their own.
void Generation::send_output(ChoiceOutput output, bool last) {
  const Usage running = usage();
  Extras extras = chunk_extras(running);
  const bool finishes = !output.finish_reason.empty();
  const bool shows_tokens = !output.tokens.empty() && (plan_.head.logprobs || plan_.head.return_token_ids);
  if (!finishes) {
    if (!output.delta.empty() || shows_tokens) reply_->event(writer_.chunk(output, extras));
    return;
  }
  if (plan_.head.chat && !output.delta.empty()) {
    ChoiceOutput said = {.index = output.index};
    said.delta = std::exchange(output.delta, {});
    said.tokens = std::exchange(output.tokens, {});
    reply_->event(writer_.chunk(said, extras));
  }
  const Timings measured = timings();
  if (last && plan_.options.timings && !plan_.options.include_usage) extras.timings = &measured;
  reply_->event(writer_.chunk(output, extras));
}

void Generation::complete() {
  over_ = true;
  const Usage used = usage();
  const Timings measured = timings();
  const Extras extras = {.usage = &used, .timings = plan_.options.timings ? &measured : nullptr};
  report(outcome_);
  if (!streaming_) {
    std::vector<ChoiceOutput> outputs;
    for (Choice& choice : choices_) outputs.push_back(std::move(choice.total));
    reply_->send(200, "application/json", writer_.reply(outputs, extras));
    return;
  }
  if (plan_.options.include_usage) reply_->event(writer_.last_chunk(extras));
  reply_->event(std::string(kDone));
  reply_->finish();
}

void Generation::fail(const HttpError& error) {
  over_ = true;
  cancel_rest();
  report("error");
  if (!streaming_) return send_error(*reply_, error);
  reply_->event(error_json(error));
  reply_->event(std::string(kDone));
  reply_->finish();
}

void Generation::on_gone() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(over_, true)) return;
  cancel_rest();
  report("cancelled");
}

void Generation::cancel_rest() {
  for (const Choice& choice : choices_)
    if (choice.id && !choice.done) context_.source.cancel(*choice.id);
}

void Generation::report(std::string_view outcome) {
  const GenerationReport report = {outcome, usage(), timings()};
  reply_->note({"prompt_tokens", report.usage.prompt});
  reply_->note({"cached_tokens", report.usage.cached});
  reply_->note({"completion_tokens", report.usage.completion});
  if (first_token_) reply_->note({"first_token_ms", report.timings.prompt_ms});
  if (report.timings.stats.steps > 0) reply_->note({"accept_len", report.timings.stats.accepted_length()});
  reply_->note({"outcome", std::string(outcome)});
  if (context_.observer) context_.observer->on_end(report);
}

// A prompt counts once, however many choices it has.
Usage Generation::usage() const {
  Usage usage;
  for (const PromptPlan& prompt : plan_.prompts) usage.prompt += std::ssize(prompt.ids);
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (i % static_cast<size_t>(plan_.options.n) == 0) usage.cached += choices_[i].stats.cached_tokens;
    usage.completion += choices_[i].tokens;
    usage.reasoning += choices_[i].reasoning_tokens;
  }
  return usage;
}

Extras Generation::chunk_extras(const Usage& running) const {
  if (plan_.options.continuous_usage) return {.usage = &running};
  return {.usage_null = plan_.options.include_usage};
}

Timings Generation::timings() const {
  Timings timings;
  for (const Choice& choice : choices_) add_stats(timings.stats, choice.stats);
  if (!first_token_) return timings;
  timings.prompt_ms = milliseconds(*first_token_ - start_);
  timings.predicted_ms = milliseconds(*last_token_ - *first_token_);
  return timings;
}

}  // namespace ddtree
