#include "server/choice_text.h"

#include <algorithm>
#include <utility>

#include "server/random_id.h"

namespace ddtree {
namespace {

int64_t count_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
}

CallDelta& call_delta(ChoiceDelta& delta, int32_t index) {
  if (delta.calls.empty() || delta.calls.back().index != index) delta.calls.emplace_back().index = index;
  return delta.calls.back();
}

}  // namespace

void ChoiceDelta::append(ChoiceDelta&& next) {
  content += next.content;
  reasoning += next.reasoning;
  for (CallDelta& call : next.calls) {
    if (call.begins) {
      calls.push_back(std::move(call));
    } else {
      call_delta(*this, call.index).arguments += call.arguments;
    }
  }
}

ChoiceText::ChoiceText(const Tokenizer& tokenizer, const StopStrings& stops, const ChoiceTextOptions& options)
    : stops_(&stops), options_(options), detokenizer_(tokenizer, options.skip_special), matcher_(stops) {}

ChoiceText::ChoiceText(const Tokenizer& tokenizer, const StopStrings& stops, const ChoiceTextOptions& options,
                       ReplyParser parser, std::span<const int32_t> begun)
    : ChoiceText(tokenizer, stops, options) {
  parser_ = std::move(parser);
  take_events(parser_->push(begun));
}

bool ChoiceText::push(int32_t id) {
  ++tokens_;
  if (parser_) {
    take_events(parser_->push({&id, 1}));
  } else {
    take_text(detokenizer_.push(id), tokens_ >= options_.min_tokens);
  }
  return stop_ || (options_.ends_after_call && has_calls());
}

void ChoiceText::push_end(int32_t id) {
  if (!options_.include_stop) return;
  if (parser_) {
    take_events(parser_->push({&id, 1}));
  } else {
    take_text(detokenizer_.push(id), false);
  }
}

void ChoiceText::finish() {
  if (stop_) return;
  if (parser_) {
    take_events(parser_->finish());
  } else {
    take_text(detokenizer_.finish(), true);
  }
  if (!stop_) delta_.content += matcher_.finish();
}

ChoiceDelta ChoiceText::take() { return std::exchange(delta_, {}); }

void ChoiceText::take_events(const std::vector<ReplyEvent>& events) {
  for (const ReplyEvent& event : events) {
    switch (event.kind) {
      case ReplyEvent::Kind::kReasoning: delta_.reasoning += event.text; break;
      case ReplyEvent::Kind::kContent: take_text(event.text, tokens_ >= options_.min_tokens); break;
      case ReplyEvent::Kind::kCallBegin:
        delta_.calls.push_back({.index = event.call,
                                .begins = true,
                                .id = event.text.empty() ? "call_" + random_id() : event.text,
                                .name = event.name,
                                .arguments = {}});
        break;
      case ReplyEvent::Kind::kArguments: call_delta(delta_, event.call).arguments += event.text; break;
      case ReplyEvent::Kind::kCallEnd: break;
    }
  }
}

void ChoiceText::take_text(const std::string& text, bool may_stop) {
  characters_ += count_characters(text);
  if (stop_) return;
  if (!may_stop) {
    delta_.content += text;
    return;
  }
  delta_.content += matcher_.push(text);
  if (!matcher_.hit()) return;
  stop_ = matcher_.hit()->stop;
  if (options_.include_stop) delta_.content += stops_->text(*stop_);
}

}  // namespace ddtree
