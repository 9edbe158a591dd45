// One answer while it is made: token ids in, pieces of text, reasoning and tool calls out, ready to be sent. All pieces
// together are the same however steps group the tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/tool_parser.h"

namespace ddtree {

struct CallDelta {
  int32_t index = 0;
  bool begins = false;
  std::string id, name;   // where it begins
  std::string arguments;  // what is new of them
};

struct ChoiceDelta {
  std::string content, reasoning;
  std::vector<CallDelta> calls;  // by ascending index, each at most once

  bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
  void append(ChoiceDelta&& next);
};

struct ChoiceTextOptions {
  bool skip_special = true;
  bool include_stop = false;
  int32_t min_tokens = 0;        // before so many tokens no stop string ends the text
  bool ends_after_call = false;  // the first tool call that is complete ends the reply
};

class ChoiceText {
 public:
  // `tokenizer` and `stops` must outlive this.
  ChoiceText(const Tokenizer& tokenizer, const StopStrings& stops, const ChoiceTextOptions& options);
  // Of a chat reply, whose first ids, `begun`, stand in the prompt already. Stop strings end its content alone.
  ChoiceText(const Tokenizer& tokenizer, const StopStrings& stops, const ChoiceTextOptions& options, ReplyParser parser,
             std::span<const int32_t> begun);

  // Takes the next token. True if the reply ends with it.
  bool push(int32_t id);
  // The token of a stop id, which ended the reply; text only where stops are included.
  void push_end(int32_t id);
  // No more tokens.
  void finish();

  // What is settled since the last call.
  ChoiceDelta take();

  // The string that ended the reply: its place in the list.
  std::optional<int32_t> stop_string() const { return stop_; }
  bool has_calls() const { return parser_ && parser_->calls() > 0; }
  int64_t reasoning_tokens() const { return parser_ ? parser_->reasoning_tokens() : 0; }

  // Characters of the text before the next token's own, those that are held back included. Without a parser.
  int64_t characters() const { return characters_; }

 private:
  void take_events(const std::vector<ReplyEvent>& events);
  void take_text(const std::string& text, bool may_stop);

  const StopStrings* stops_;
  ChoiceTextOptions options_;
  Detokenizer detokenizer_;
  StopMatcher matcher_;
  std::optional<ReplyParser> parser_;
  std::optional<int32_t> stop_;
  int64_t tokens_ = 0;
  int64_t characters_ = 0;
  ChoiceDelta delta_;
};

}  // namespace ddtree
