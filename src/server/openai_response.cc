#include "server/openai_response.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/core.h>

#include "base/utf8.h"

namespace ddtree {
namespace {

constexpr float kLowestLogprob = -9999;  // stands for −infinity, which JSON has not

void write_ids(JsonWriter& out, std::span<const int32_t> ids) {
  out.begin_array();
  for (const int32_t id : ids) out.value(id);
  out.end_array();
}

void write_usage(JsonWriter& out, const Usage& usage) {
  out.begin_object().member("prompt_tokens", usage.prompt).member("completion_tokens", usage.completion);
  out.member("total_tokens", usage.prompt + usage.completion);
  out.key("prompt_tokens_details").begin_object().member("cached_tokens", usage.cached).end_object();
  out.key("completion_tokens_details").begin_object().member("reasoning_tokens", usage.reasoning).end_object();
  out.end_object();
}

// Up to the last count that is not 0.
void write_counts(JsonWriter& out, std::string_view name, std::span<const int32_t> counts) {
  while (!counts.empty() && counts.back() == 0) counts = counts.first(counts.size() - 1);
  out.key(name);
  write_ids(out, counts);
}

double per_second(double count, double ms) { return ms > 0 ? count * 1000 / ms : 0; }

void write_timings(JsonWriter& out, const Timings& timings) {
  const RequestStats& s = timings.stats;
  out.begin_object().member("prompt_n", s.prompt_tokens - s.cached_tokens).member("cache_n", s.cached_tokens);
  out.member("prompt_ms", timings.prompt_ms);
  out.member("prompt_per_second", per_second(s.prompt_tokens - s.cached_tokens, timings.prompt_ms));
  out.member("predicted_n", s.output_tokens).member("predicted_ms", timings.predicted_ms);
  out.member("predicted_per_second", per_second(std::max(s.output_tokens - 1, 0), timings.predicted_ms));
  out.member("accept_len", s.accepted_length()).member("verify_n", s.steps);
  out.member("draft_n", s.drafted).member("draft_n_accepted", s.committed - s.steps);
  write_counts(out, "accept_hist", s.accepted_histogram);
  write_counts(out, "accept_at_depth", s.accepted_at_depth);
  write_counts(out, "accept_at_rank", s.accepted_at_rank);
  out.key("phase_ms").begin_object();
  for (int p = 0; p < kPhases; ++p) out.member(phase_name(static_cast<Phase>(p)), s.phase_ms[static_cast<size_t>(p)]);
  out.end_object().member("trimmed_n", s.trimmed).member("preemptions", s.preemptions);
  out.member("mode", s.effective_mode).key("not_speculating");
  s.not_speculating.empty() ? out.null() : out.value(s.not_speculating);
  out.end_object();
}

template <class Counts>
void add_counts(Counts& sum, const Counts& counts) {
  for (size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i];
}

}  // namespace

void ChoiceOutput::append(ChoiceOutput&& next) {
  delta.append(std::move(next.delta));
  tokens.insert(tokens.end(), std::make_move_iterator(next.tokens.begin()), std::make_move_iterator(next.tokens.end()));
  finish_reason = next.finish_reason;
  stop_reason = std::move(next.stop_reason);
}

void add_stats(RequestStats& sum, const RequestStats& stats) {
  sum.prompt_tokens += stats.prompt_tokens;
  sum.output_tokens += stats.output_tokens;
  sum.prefill_tokens += stats.prefill_tokens;
  sum.cached_tokens += stats.cached_tokens;
  sum.steps += stats.steps;
  sum.committed += stats.committed;
  sum.drafted += stats.drafted;
  sum.trimmed += stats.trimmed;
  sum.preemptions += stats.preemptions;
  add_counts(sum.accepted_histogram, stats.accepted_histogram);
  add_counts(sum.accepted_at_depth, stats.accepted_at_depth);
  add_counts(sum.accepted_at_rank, stats.accepted_at_rank);
  add_counts(sum.phase_ms, stats.phase_ms);
  const std::string_view off = spec_mode_name(SpecMode::kOff);
  if (sum.effective_mode.empty() || (sum.effective_mode == off && stats.effective_mode != off)) {
    sum.effective_mode = stats.effective_mode;
    sum.not_speculating = stats.not_speculating;
  }
}

std::string ReplyWriter::reply(std::span<const ChoiceOutput> choices, const Extras& extras) const {
  if (head_.chat) return object("chat.completion", choices, extras, &ReplyWriter::write_message);
  return object("text_completion", choices, extras, &ReplyWriter::write_completion);
}

std::string ReplyWriter::role_chunk(const ChoiceOutput& choice, const Extras& extras) const {
  return object("chat.completion.chunk", {&choice, 1}, extras, &ReplyWriter::write_role);
}

std::string ReplyWriter::chunk(const ChoiceOutput& choice, const Extras& extras) const {
  if (head_.chat) return object("chat.completion.chunk", {&choice, 1}, extras, &ReplyWriter::write_delta);
  return object("text_completion", {&choice, 1}, extras, &ReplyWriter::write_completion);
}

std::string ReplyWriter::last_chunk(const Extras& extras) const {
  return object(head_.chat ? "chat.completion.chunk" : "text_completion", {}, extras, &ReplyWriter::write_delta);
}

std::string ReplyWriter::object(std::string_view kind, std::span<const ChoiceOutput> choices, const Extras& extras,
                                void (ReplyWriter::*write)(JsonWriter&, const ChoiceOutput&) const) const {
  JsonWriter out;
  out.begin_object().member("id", head_.id).member("object", kind).member("created", head_.created);
  out.member("model", head_.model).member("system_fingerprint", head_.fingerprint).key("choices").begin_array();
  for (const ChoiceOutput& choice : choices) (this->*write)(out, choice);
  out.end_array();
  if (head_.chat && !choices.empty() && !choices[0].prompt.empty()) {
    out.key("prompt_token_ids");
    write_ids(out, choices[0].prompt);
  }
  if (extras.usage != nullptr) {
    out.key("usage");
    write_usage(out, *extras.usage);
  } else if (extras.usage_null) {
    out.key("usage").null();
  }
  if (extras.timings != nullptr) {
    out.key("timings");
    write_timings(out, *extras.timings);
  }
  out.end_object();
  return std::move(out).text();
}

void ReplyWriter::write_message(JsonWriter& out, const ChoiceOutput& choice) const {
  const ChoiceDelta& said = choice.delta;
  out.begin_object().member("index", choice.index).key("message").begin_object();
  out.member("role", "assistant").key("content");
  said.content.empty() && !said.calls.empty() ? out.null() : out.value(said.content);
  if (!said.reasoning.empty()) out.member("reasoning_content", said.reasoning);
  if (!said.calls.empty()) {
    out.key("tool_calls").begin_array();
    for (const CallDelta& call : said.calls) {
      out.begin_object().member("id", call.id).member("type", "function").key("function").begin_object();
      out.member("name", call.name).member("arguments", call.arguments).end_object().end_object();
    }
    out.end_array();
  }
  out.end_object();
  write_end(out, choice);
}

void ReplyWriter::write_role(JsonWriter& out, const ChoiceOutput& choice) const {
  out.begin_object().member("index", choice.index).key("delta").begin_object();
  out.member("role", "assistant").member("content", "").end_object();
  out.key("logprobs").null().key("finish_reason").null().end_object();
}

void ReplyWriter::write_delta(JsonWriter& out, const ChoiceOutput& choice) const {
  const ChoiceDelta& said = choice.delta;
  out.begin_object().member("index", choice.index).key("delta").begin_object();
  if (!said.reasoning.empty()) out.member("reasoning_content", said.reasoning);
  if (!said.content.empty()) out.member("content", said.content);
  if (!said.calls.empty()) {
    out.key("tool_calls").begin_array();
    for (const CallDelta& call : said.calls) {
      out.begin_object().member("index", call.index);
      if (call.begins) out.member("id", call.id).member("type", "function");
      out.key("function").begin_object();
      if (call.begins) out.member("name", call.name);
      out.member("arguments", call.arguments).end_object().end_object();
    }
    out.end_array();
  }
  out.end_object();
  write_end(out, choice);
}

void ReplyWriter::write_completion(JsonWriter& out, const ChoiceOutput& choice) const {
  out.begin_object().member("index", choice.index).member("text", choice.delta.content);
  if (!choice.prompt.empty()) {
    out.key("prompt_token_ids");
    write_ids(out, choice.prompt);
  }
  write_end(out, choice);
}

// What every choice ends with.
void ReplyWriter::write_end(JsonWriter& out, const ChoiceOutput& choice) const {
  out.key("logprobs");
  write_logprobs(out, choice);
  if (head_.return_token_ids) {
    out.key("token_ids").begin_array();
    for (const TokenOutput& token : choice.tokens) out.value(token.token.id);
    out.end_array();
  }
  out.key("finish_reason");
  choice.finish_reason.empty() ? out.null() : out.value(choice.finish_reason);
  if (!choice.finish_reason.empty()) {
    out.key("stop_reason");
    if (const auto* text = std::get_if<std::string>(&choice.stop_reason)) {
      out.value(*text);
    } else if (const auto* id = std::get_if<int32_t>(&choice.stop_reason)) {
      out.value(*id);
    } else {
      out.null();
    }
  }
  out.end_object();
}

void ReplyWriter::write_logprobs(JsonWriter& out, const ChoiceOutput& choice) const {
  if (!head_.logprobs || choice.tokens.empty()) {
    out.null();
  } else if (head_.chat) {
    write_chat_logprobs(out, choice);
  } else {
    write_completion_logprobs(out, choice);
  }
}

void ReplyWriter::write_chat_logprobs(JsonWriter& out, const ChoiceOutput& choice) const {
  out.begin_object().key("content").begin_array();
  for (const TokenOutput& token : choice.tokens) {
    const std::span<const TokenLogprob> entries = token.token.logprobs;
    if (entries.empty()) continue;
    out.begin_object();
    write_chat_logprob(out, entries[0]);
    out.key("top_logprobs").begin_array();
    for (const TokenLogprob& entry : entries.subspan(1)) {
      out.begin_object();
      write_chat_logprob(out, entry);
      out.end_object();
    }
    out.end_array().end_object();
  }
  out.end_array().end_object();
}

// A token may be part of a character: its bytes say what it is.
void ReplyWriter::write_chat_logprob(JsonWriter& out, const TokenLogprob& entry) const {
  const std::string_view bytes = tokenizer_->token_bytes(entry.id);
  out.member("token", head_.tokens_as_ids ? token_name(entry.id) : std::string(bytes));
  out.member("logprob", std::max(entry.logprob, kLowestLogprob)).key("bytes").begin_array();
  for (const char byte : bytes) out.value(static_cast<unsigned>(static_cast<unsigned char>(byte)));
  out.end_array();
}

void ReplyWriter::write_completion_logprobs(JsonWriter& out, const ChoiceOutput& choice) const {
  out.begin_object().key("tokens").begin_array();
  for (const TokenOutput& token : choice.tokens) out.value(token_name(token.token.id));
  out.end_array().key("token_logprobs").begin_array();
  for (const TokenOutput& token : choice.tokens)
    token.token.logprobs.empty() ? out.null() : out.value(std::max(token.token.logprobs[0].logprob, kLowestLogprob));
  out.end_array().key("top_logprobs").begin_array();
  for (const TokenOutput& token : choice.tokens) {
    std::set<std::string> names;  // the token itself is often among the most likely; tokens of equal text count once
    out.begin_object();
    for (const TokenLogprob& entry : token.token.logprobs) {
      std::string name = token_name(entry.id);
      if (names.insert(name).second) out.member(name, std::max(entry.logprob, kLowestLogprob));
    }
    out.end_object();
  }
  out.end_array().key("text_offset").begin_array();
  for (const TokenOutput& token : choice.tokens) out.value(token.text_offset);
  out.end_array().end_object();
}

// What stands for a token in lists of texts: "bytes:\xe2\x82" where it is not whole characters.
std::string ReplyWriter::token_name(int32_t id) const {
  if (head_.tokens_as_ids) return fmt::format("token_id:{}", id);
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (!find_invalid_utf8(bytes)) return std::string(bytes);
  std::string name = "bytes:";
  for (const char byte : bytes) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
  return name;
}

}  // namespace ddtree
