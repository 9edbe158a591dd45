#include "text/tool_parser.h"

#include <algorithm>
#include <utility>

#include "base/json.h"
#include "text/chat_json.h"

namespace ddtree {
namespace {

using Kind = ReplyEvent::Kind;

constexpr std::string_view kThinkText = "<think>";
constexpr std::string_view kThinkEndText = "</think>";
constexpr std::string_view kSpace = " \t\r\n";
constexpr int kMaxCallDepth = 64;

std::string_view trimmed(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// How many of the last bytes of `text` may be the beginning of `marker`.
size_t open_suffix(std::string_view text, std::string_view marker) {
  for (size_t n = std::min(text.size(), marker.size() - 1); n > 0; --n)
    if (text.ends_with(marker.substr(0, n))) return n;
  return 0;
}

}  // namespace

ReplyParser::ReplyParser(const Tokenizer& tokenizer, ChatFamily family, ReplyOptions options)
    : tokenizer_(&tokenizer), options_(std::move(options)), detokenizer_(tokenizer) {
  const auto know = [&](std::string_view name, Marker marker) {
    if (const std::optional<int32_t> id = tokenizer.special_id(name)) markers_.push_back({*id, marker});
  };
  if (options_.split_reasoning && tokenizer.special_id(kThinkText) && tokenizer.special_id(kThinkEndText)) {
    know(kThinkText, Marker::kThink);
    know(kThinkEndText, Marker::kThinkEnd);
  } else {
    think_is_text_ = options_.split_reasoning && family != ChatFamily::kKimiK2;  // K2 does not think
  }
  if (family <= ChatFamily::kKimiK25) {
    know("<|tool_calls_section_begin|>", Marker::kSectionBegin);
    know("<|tool_calls_section_end|>", Marker::kSectionEnd);
    know("<|tool_call_begin|>", Marker::kCallBegin);
    know("<|tool_call_argument_begin|>", Marker::kArgumentBegin);
    know("<|tool_call_end|>", Marker::kCallEnd);
  } else if (family == ChatFamily::kQwen3) {
    know("<tool_call>", Marker::kJsonBegin);
    know("</tool_call>", Marker::kJsonEnd);
  }
  if (options_.in_reasoning && options_.split_reasoning)
    state_ = State::kReasoning;
  else if (think_is_text_)
    state_ = State::kStart;
}

std::vector<ReplyEvent> ReplyParser::push(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (const std::optional<Marker> marker = marker_of(id)) {
      take_text(detokenizer_.finish());  // a character that the marker cuts off
      take_marker(*marker);
      continue;
    }
    reasoning_tokens_ += state_ == State::kReasoning;
    if (tokenizer_->is_special(id) && (options_.skip_special || !in_text())) continue;
    take_text(detokenizer_.push(id));
  }
  return std::exchange(events_, {});
}

std::vector<ReplyEvent> ReplyParser::finish() {
  take_text(detokenizer_.finish());
  const std::string rest = std::exchange(held_, {});
  if (state_ == State::kStart || (state_ == State::kContent && calls_ == 0))
    emit(Kind::kContent, rest);
  else if (state_ == State::kReasoning)
    emit(Kind::kReasoning, rest);
  else if (!in_text())
    leave_call(false, State::kContent);
  return std::exchange(events_, {});
}

std::optional<ReplyParser::Marker> ReplyParser::marker_of(int32_t id) const {
  for (const MarkerId& known : markers_)
    if (known.id == id) return known.marker;
  return std::nullopt;
}

// Replies that skip a marker are understood: a call ends where anything but its text begins, reasoning where calls do,
// and a marker that makes no sense where it stands is left out.
void ReplyParser::take_marker(Marker marker) {
  switch (marker) {
    case Marker::kThink:
      if (state_ != State::kContent) break;
      held_.clear();  // white space
      state_ = State::kReasoning;
      break;
    case Marker::kThinkEnd:
      if (state_ == State::kReasoning) state_ = State::kContent;
      break;
    case Marker::kSectionBegin:
      in_section_ = true;
      enter_call(State::kSection);
      break;
    case Marker::kSectionEnd:
      in_section_ = false;
      if (!in_text()) leave_call(true, State::kContent);
      break;
    case Marker::kCallBegin: enter_call(State::kCallId); break;
    case Marker::kArgumentBegin:
      if (state_ != State::kCallId) break;
      state_ = State::kArguments;
      begin_call(trimmed(std::exchange(held_, {})));
      break;
    case Marker::kCallEnd:
      if (!in_text()) leave_call(true, in_section_ ? State::kSection : State::kContent);
      break;
    case Marker::kJsonBegin: enter_call(State::kJson); break;
    case Marker::kJsonEnd:
      if (state_ == State::kJson) read_json_call();
      break;
  }
}

// From wherever the reply is to the inside of a section or call.
void ReplyParser::enter_call(State state) {
  if (!in_text())
    leave_call(true, state);
  else if (state_ == State::kReasoning)
    emit(Kind::kReasoning, std::exchange(held_, {}));
  held_.clear();  // white space before calls
  content_begun_ = false;
  state_ = state;
}

void ReplyParser::leave_call(bool complete, State next) {
  if (state_ == State::kCallId || state_ == State::kJson) ++dropped_calls_;
  if (state_ == State::kArguments && reports_call_) {
    emit(Kind::kCallEnd, {});
    events_.back().complete = complete;
    ++calls_;
  }
  held_.clear();
  state_ = next;
}

void ReplyParser::begin_call(std::string_view id) {
  arguments_begun_ = false;
  const std::optional<std::string> tool = tool_of(id);
  if (!tool) ++dropped_calls_;
  reports_call_ = tool && !options_.tools.empty() && calls_ < options_.max_calls;
  if (!reports_call_) return;
  emit(Kind::kCallBegin, id);
  events_.back().name = *tool;
}

// "functions.NAME:3", without one of its ends too. An id that names nothing can mean only the only tool.
std::optional<std::string> ReplyParser::tool_of(std::string_view id) const {
  constexpr std::string_view kPrefix = "functions.";
  std::string_view name = id;
  if (const size_t colon = name.rfind(':'); colon != std::string_view::npos && is_number(name.substr(colon + 1)))
    name = name.substr(0, colon);
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  const bool named = name.size() < id.size() && !name.empty() && !is_number(name);
  if (named || std::find(options_.tools.begin(), options_.tools.end(), name) != options_.tools.end())
    return std::string(name);
  if (options_.tools.size() == 1) return options_.tools.front();
  return std::nullopt;
}

// Qwen's calls are {"name": …, "arguments": …}; the arguments are printed anew.
void ReplyParser::read_json_call() {
  const std::string text = std::exchange(held_, {});
  const Result<JsonDocument> call = parse_json(text, "call", {.max_depth = kMaxCallDepth});
  const bool is_call = call.ok() && call->root().get_string("name").ok() && call->root().find("arguments");
  state_ = State::kContent;
  if (!is_call || call->root().get_string("name")->empty()) {
    ++dropped_calls_;
    return;
  }
  if (options_.tools.empty() || calls_ >= options_.max_calls) return;
  emit(Kind::kCallBegin, {});
  events_.back().name = *call->root().get_string("name");
  const JsonValue arguments = *call->root().find("arguments");
  emit(Kind::kArguments, arguments.is_string() ? std::string(*arguments.as_string()) : tojson(arguments));
  emit(Kind::kCallEnd, {});
  ++calls_;
}

void ReplyParser::take_text(std::string_view text) {
  if (text.empty()) return;
  switch (state_) {
    case State::kStart: take_start(text); break;
    case State::kContent: take_content(text); break;
    case State::kReasoning: take_reasoning(text); break;
    case State::kSection: break;
    case State::kCallId:
    case State::kJson: held_ += text; break;
    case State::kArguments: take_arguments(text); break;
  }
}

void ReplyParser::take_start(std::string_view text) {
  held_ += text;
  const std::string_view begun =
      std::string_view(held_).substr(std::min(held_.find_first_not_of(kSpace), held_.size()));
  if (kThinkText.starts_with(begun) && begun.size() < kThinkText.size()) return;
  const std::string rest = std::exchange(held_, {});
  if (trimmed(rest).starts_with(kThinkText)) {
    state_ = State::kReasoning;
    take_reasoning(std::string_view(rest).substr(rest.find(kThinkText) + kThinkText.size()));
  } else {
    state_ = State::kContent;
    take_content(rest);
  }
}

void ReplyParser::take_reasoning(std::string_view text) {
  if (!think_is_text_) {
    emit(Kind::kReasoning, text);
    return;
  }
  held_ += text;
  const size_t end = held_.find(kThinkEndText);
  const size_t settled = end != std::string::npos ? end : held_.size() - open_suffix(held_, kThinkEndText);
  emit(Kind::kReasoning, std::string_view(held_).substr(0, settled));
  held_.erase(0, settled);
  if (end == std::string::npos) return;
  state_ = State::kContent;
  const std::string rest = std::exchange(held_, {});
  take_content(std::string_view(rest).substr(kThinkEndText.size()));
}

// White space is content only if something follows it: models put line breaks around calls.
void ReplyParser::take_content(std::string_view text) {
  held_ += text;
  content_begun_ = content_begun_ || held_.find_first_not_of(kSpace) != std::string::npos;
  if (content_begun_) emit(Kind::kContent, std::exchange(held_, {}));
}

// White space around the arguments is not part of them.
void ReplyParser::take_arguments(std::string_view text) {
  if (!reports_call_) return;
  if (!arguments_begun_) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (text.empty()) return;
  arguments_begun_ = true;
  held_ += text;
  const size_t settled = held_.find_last_not_of(kSpace) + 1;
  emit(Kind::kArguments, std::string_view(held_).substr(0, settled));
  held_.erase(0, settled);
}

void ReplyParser::emit(Kind kind, std::string_view text) {
  const bool is_text = kind == Kind::kReasoning || kind == Kind::kContent;
  const bool is_edge = kind == Kind::kCallBegin || kind == Kind::kCallEnd;
  if (text.empty() && !is_edge) return;
  if (!is_edge && !events_.empty() && events_.back().kind == kind)
    events_.back().text += text;
  else
    events_.push_back({.kind = kind, .call = is_text ? -1 : calls_, .text = std::string(text), .name = {}});
}

}  // namespace ddtree
