// A conversation and how a family of models wants it as a prompt. docs/chat.md says which template each family follows.
//
// A prompt is made as token ids, never as text that is tokenised again: control tokens come from the renderer alone,
// and whatever a message says is encoded as text, so that no message can forge a turn.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer.h"

namespace ddtree {

enum class ChatRole : uint8_t { kSystem, kUser, kAssistant, kTool };

struct ChatToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // one JSON object, as text
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string name = {};                  // of the speaker or the tool; may be empty
  std::vector<std::string> content = {};  // the text parts
  // An assistant's:
  std::optional<std::string> reasoning = {};
  std::vector<ChatToolCall> tool_calls = {};
  // A tool's: which call it answers, counted over the whole conversation from 0.
  int32_t answers = -1;
};

struct ChatTool {
  std::string name;
  JsonValue definition;  // as the client sent it: {"type": "function", "function": {…}}
};

// The views of `tools` are into the request's document, which must outlive this.
struct Chat {
  std::vector<ChatMessage> messages;
  std::vector<ChatTool> tools;
};

struct ChatLimits {
  size_t messages = 2048;
  size_t tools = 128;
  size_t tool_bytes = size_t{256} << 10;  // of all tools together, as compact JSON
  int arguments_depth = 32;               // nesting of a call's arguments
};

// Reads "messages" and "tools" (nullptr: none) of a request. Errors name the field: "messages[3].tool_calls[0].id".
Result<Chat> parse_chat(JsonValue messages, const JsonValue* tools, const ChatLimits& limits = {});

enum class ChatFamily : uint8_t { kKimiK2, kKimiK2Thinking, kKimiK25, kDeepSeekV3, kQwen3, kChatMl };

// The names that --chat-template takes: "kimi-k2", "kimi-k2-thinking", "kimi-k2.5" (and "kimi-k2.6"), …
std::string_view chat_family_name(ChatFamily family);
Result<ChatFamily> find_chat_family(std::string_view name);

struct ChatOptions {
  bool add_generation_prompt = true;    // the beginning of the assistant's next message
  bool continue_final_message = false;  // instead of it: the last message is the assistant's and stays open
  std::optional<bool> thinking = {};    // nullopt: what the family does by itself
  bool preserve_thinking = false;       // keep the reasoning of all turns, not only of the current one
};

struct ChatPrompt {
  std::vector<int32_t> ids;
  bool in_reasoning = false;  // the prompt ends inside <think>: the reply begins with reasoning
};

// Immutable; one may serve many threads. The tokenizer must outlive it.
class ChatRenderer {
 public:
  // Chosen by "model_type" of config.json and the control tokens that the vocabulary has.
  static Result<ChatRenderer> create(const Tokenizer& tokenizer, std::string_view model_type);
  // The family is given; the vocabulary must have its control tokens.
  static Result<ChatRenderer> create(const Tokenizer& tokenizer, ChatFamily family);

  ChatFamily family() const { return family_; }
  bool takes_tools() const;
  Result<ChatPrompt> render(const Chat& chat, const ChatOptions& options = {}) const;

 private:
  ChatRenderer(const Tokenizer& tokenizer, ChatFamily family) : tokenizer_(&tokenizer), family_(family) {}

  const Tokenizer* tokenizer_;
  ChatFamily family_;
};

}  // namespace ddtree
