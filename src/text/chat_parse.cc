// From a request's "messages" and "tools" to a Chat.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "text/chat.h"
#include "text/chat_json.h"

namespace ddtree {
namespace {

constexpr size_t kMaxSpeakerBytes = 256;
constexpr size_t kMaxToolNameBytes = 64;

bool is_tool_name(std::string_view name) {
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  return !name.empty() && name.size() <= kMaxToolNameBytes && name.find_first_not_of(kAllowed) == std::string::npos;
}

Result<std::string> read_tool_name(JsonValue function) {
  TRY_ASSIGN(const JsonValue name, function.get("name"));
  TRY_ASSIGN(const std::string_view text, name.as_string());
  if (!is_tool_name(text))
    return name.error(Code::kInvalidArgument,
                      fmt::format("is {}, must be 1 to {} of A-Z a-z 0-9 _ . -", name.text(), kMaxToolNameBytes));
  return std::string(text);
}

// "function" or absent: nothing else is known.
Status check_type(JsonValue object) {
  const std::optional<JsonValue> type = object.find("type");
  if (!type || (type->is_string() && *type->as_string() == "function")) return {};
  return type->error(Code::kUnsupported, fmt::format("is {}, only \"function\" is supported", type->text()));
}

Result<ChatRole> read_role(JsonValue message) {
  TRY_ASSIGN(const JsonValue role, message.get("role"));
  TRY_ASSIGN(const std::string_view name, role.as_string());
  if (name == "system" || name == "developer") return ChatRole::kSystem;
  if (name == "user") return ChatRole::kUser;
  if (name == "assistant") return ChatRole::kAssistant;
  if (name == "tool") return ChatRole::kTool;
  return role.error(Code::kInvalidArgument,
                    fmt::format("is {}, must be system, developer, user, assistant or tool", role.text()));
}

Result<std::vector<std::string>> read_content(JsonValue content) {
  if (content.is_string()) return std::vector<std::string>{std::string(*content.as_string())};
  if (!content.is_array())
    return content.error(Code::kInvalidArgument,
                         fmt::format("is {}, must be a string or an array of text parts", content.text()));
  std::vector<std::string> parts;
  for (const JsonValue part : elements_of(content)) {
    TRY_ASSIGN(const JsonValue type, part.get("type"));
    TRY_ASSIGN(const std::string_view name, type.as_string());
    if (name != "text")
      return type.error(Code::kUnsupported,
                        fmt::format("is {}: only text parts are supported, no images, audio or files", type.text()));
    TRY_ASSIGN(const std::string_view text, part.get_string("text"));
    parts.emplace_back(text);
  }
  return parts;
}

// One layer of JSON: an object as it is, or the text of one; some clients encode that text once more, or send nothing.
Result<std::string> read_arguments(JsonValue function, int max_depth) {
  TRY_ASSIGN(const JsonValue arguments, function.get("arguments"));
  if (arguments.is_object()) return tojson(arguments);
  if (!arguments.is_string())
    return arguments.error(Code::kInvalidArgument,
                           fmt::format("is {}, must be the text of a JSON object", arguments.text()));
  std::string text(*arguments.as_string());
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return std::string("{}");
  for (int layer = 0; layer < 2; ++layer) {
    const Result<JsonDocument> document = parse_json(text, "", {.max_depth = max_depth});
    if (!document.ok()) return parse_json(text, arguments.location(), {.max_depth = max_depth}).error();
    if (document->root().is_object()) return text;
    if (!document->root().is_string()) break;
    text = *document->root().as_string();
  }
  return arguments.error(Code::kInvalidArgument, "is JSON but not an object, which a call's arguments must be");
}

Result<ChatToolCall> read_tool_call(JsonValue call, int max_depth) {
  ChatToolCall result;
  TRY(check_type(call));
  TRY_ASSIGN(const JsonValue id, call.get("id"));
  TRY_ASSIGN(result.id, id.as_string());
  if (result.id.empty()) return id.error(Code::kInvalidArgument, "is empty");
  TRY_ASSIGN(const JsonValue function, call.get("function"));
  TRY_ASSIGN(result.name, read_tool_name(function));
  TRY_ASSIGN(result.arguments, read_arguments(function, max_depth));
  return result;
}

// What the calls so far are known by: an id may come again in a later turn, and then means the later call.
using CallNumbers = std::map<std::string, int32_t, std::less<>>;

class MessageReader {
 public:
  explicit MessageReader(const ChatLimits& limits) : limits_(limits) {}

  Result<ChatMessage> read(JsonValue message) {
    ChatMessage result;
    TRY_ASSIGN(result.role, read_role(message));
    TRY(refuse(message, "function_call", "use tool_calls"));
    TRY(refuse(message, "audio", "only text is supported"));
    TRY(read_name(message, result.name));
    if (result.role == ChatRole::kAssistant) TRY(read_assistant(message, result));
    if (result.role == ChatRole::kTool) TRY(read_answer(message, result));

    const std::optional<JsonValue> content = message.find("content");
    const bool absent = !content || content->is_null();
    if (absent && result.role != ChatRole::kAssistant) return message.get("content").error();
    if (absent) return result;
    TRY_ASSIGN(result.content, read_content(*content));
    return result;
  }

 private:
  static Status refuse(JsonValue message, const char* key, const char* instead) {
    const std::optional<JsonValue> value = message.find(key);
    if (!value || value->is_null()) return {};
    return value->error(Code::kUnsupported, fmt::format("is not supported: {}", instead));
  }

  static Status read_name(JsonValue message, std::string& name) {
    TRY_ASSIGN(const std::optional<std::string_view> text, message.find_string("name"));
    if (!text) return {};
    if (text->size() > kMaxSpeakerBytes)
      return message.find("name")->error(
          Code::kInvalidArgument, fmt::format("has {} bytes, at most {} are accepted", text->size(), kMaxSpeakerBytes));
    name = *text;
    return {};
  }

  Status read_assistant(JsonValue message, ChatMessage& result) {
    TRY_ASSIGN(std::optional<std::string_view> reasoning, message.find_string("reasoning_content"));
    if (!reasoning) {
      TRY_ASSIGN(reasoning, message.find_string("reasoning"));
    }
    if (reasoning) result.reasoning = std::string(*reasoning);

    const std::optional<JsonValue> calls = message.find("tool_calls");
    if (!calls || calls->is_null()) return {};
    TRY_ASSIGN(const JsonElements elements, calls->elements());
    for (const JsonValue call : elements) {
      TRY_ASSIGN(ChatToolCall read, read_tool_call(call, limits_.arguments_depth));
      numbers_.insert_or_assign(read.id, count_++);
      result.tool_calls.push_back(std::move(read));
    }
    return {};
  }

  Status read_answer(JsonValue message, ChatMessage& result) {
    TRY_ASSIGN(const JsonValue id, message.get("tool_call_id"));
    TRY_ASSIGN(const std::string_view text, id.as_string());
    const auto call = numbers_.find(text);
    if (call == numbers_.end())
      return id.error(Code::kInvalidArgument,
                      fmt::format("is {}, but no call before this message has that id", id.text()));
    result.answers = call->second;
    return {};
  }

  const ChatLimits& limits_;
  CallNumbers numbers_;
  int32_t count_ = 0;
};

Result<ChatTool> read_tool(JsonValue tool) {
  TRY(check_type(tool));
  TRY_ASSIGN(const JsonValue function, tool.get("function"));
  TRY_ASSIGN(std::string name, read_tool_name(function));
  TRY(function.find_string("description"));
  if (const std::optional<JsonValue> parameters = function.find("parameters");
      parameters && !parameters->is_null() && !parameters->is_object())
    return parameters->error(Code::kInvalidArgument,
                             fmt::format("is {}, must be an object: a JSON schema", parameters->text()));
  return ChatTool{std::move(name), tool};
}

Error too_many(JsonValue list, const char* what, size_t limit) {
  return list.error(Code::kInvalidArgument, fmt::format("is {} {}, at most {} are accepted", list.text(), what, limit));
}

}  // namespace

Result<Chat> parse_chat(JsonValue messages, const JsonValue* tools, const ChatLimits& limits) {
  Chat chat;
  TRY_ASSIGN(const JsonElements list, messages.elements());
  if (list.size() == 0) return messages.error(Code::kInvalidArgument, "is empty; a conversation has a message");
  if (list.size() > limits.messages) return too_many(messages, "messages", limits.messages);
  MessageReader reader(limits);
  for (const JsonValue message : list) {
    TRY_ASSIGN(ChatMessage read, reader.read(message));
    chat.messages.push_back(std::move(read));
  }

  if (!tools || tools->is_null()) return chat;
  TRY_ASSIGN(const JsonElements declared, tools->elements());
  if (declared.size() > limits.tools) return too_many(*tools, "tools", limits.tools);
  size_t bytes = 0;
  for (const JsonValue tool : declared) {
    TRY_ASSIGN(ChatTool read, read_tool(tool));
    bytes += tojson(tool, {.comma = ",", .colon = ":"}).size();
    chat.tools.push_back(std::move(read));
  }
  if (bytes > limits.tool_bytes)
    return tools->error(Code::kInvalidArgument,
                        fmt::format("are {} bytes of JSON, at most {} are accepted", bytes, limits.tool_bytes));
  return chat;
}

}  // namespace ddtree
