// A chat reply while it arrives, taken apart into reasoning, content and tool calls.
//
// Markers are told by their token ids, never by text, so that no text can look like one; only where a vocabulary has no
// id for <think>, its text counts. The events depend on the ids alone, not on how steps cut them: joined, they are the
// same for every cut.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace ddtree {

struct ReplyEvent {
  enum class Kind : uint8_t { kReasoning, kContent, kCallBegin, kArguments, kCallEnd };
  Kind kind;
  int32_t call;          // which call of the reply, from 0; -1 for text outside
  std::string text;      // what is new; the model's id for the call at its beginning (Qwen's calls have none)
  std::string name;      // of the tool, at a call's beginning
  bool complete = true;  // at a call's end: false where the reply stopped inside it
};

struct ReplyOptions {
  bool in_reasoning = false;            // ChatPrompt::in_reasoning
  bool split_reasoning = true;          // false: reasoning is content, with its markers
  bool skip_special = true;             // control tokens that have no meaning here are left out of the text
  std::vector<std::string> tools = {};  // the names declared; without any, calls are left out of the reply
  int32_t max_calls = std::numeric_limits<int32_t>::max();  // further ones are left out
};

class ReplyParser {
 public:
  // The tokenizer must outlive this.
  ReplyParser(const Tokenizer& tokenizer, ChatFamily family, ReplyOptions options);

  // The events of the next ids: adjacent text of one kind is one event.
  std::vector<ReplyEvent> push(std::span<const int32_t> ids);
  // The end of the reply.
  std::vector<ReplyEvent> finish();

  int32_t calls() const { return calls_; }                  // whose end was reported
  int32_t dropped_calls() const { return dropped_calls_; }  // that name no tool, or are cut before their arguments
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  enum class Marker : uint8_t {
    kThink,
    kThinkEnd,
    kSectionBegin,
    kSectionEnd,
    kCallBegin,
    kArgumentBegin,
    kCallEnd,
    kJsonBegin,
    kJsonEnd,
  };
  enum class State : uint8_t {
    kStart,  // what may become the text "<think>"
    kContent,
    kReasoning,
    kSection,  // between the calls of a section
    kCallId,
    kArguments,
    kJson,  // a call that is one JSON object
  };
  struct MarkerId {
    int32_t id;
    Marker marker;
  };

  std::optional<Marker> marker_of(int32_t id) const;
  bool in_text() const { return state_ <= State::kReasoning; }
  void take_marker(Marker marker);
  void take_text(std::string_view text);
  void take_start(std::string_view text);
  void take_reasoning(std::string_view text);
  void take_content(std::string_view text);
  void take_arguments(std::string_view text);
  void enter_call(State state);
  void leave_call(bool complete, State next);
  void begin_call(std::string_view id);
  void read_json_call();
  std::optional<std::string> tool_of(std::string_view id) const;
  void emit(ReplyEvent::Kind kind, std::string_view text);

  const Tokenizer* tokenizer_;
  ReplyOptions options_;
  Detokenizer detokenizer_;
  std::vector<MarkerId> markers_;
  bool think_is_text_ = false;

  State state_ = State::kContent;
  bool in_section_ = false;
  bool reports_call_ = false;   // the current call is among the reply's
  bool content_begun_ = false;  // since the last call: white space alone does not count
  bool arguments_begun_ = false;
  std::string held_;  // text of the state that is not settled
  int32_t calls_ = 0;
  int32_t dropped_calls_ = 0;
  int64_t reasoning_tokens_ = 0;
  std::vector<ReplyEvent> events_;
};

}  // namespace ddtree
