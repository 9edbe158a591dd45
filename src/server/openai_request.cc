#include "server/openai_request.h"

#include <array>
#include <limits>
#include <utility>

#include <fmt/core.h>

#include "server/api_error.h"
#include "server/openai_fields.h"

namespace ddtree {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

GenerationOptions initial_options(const RequestDefaults& defaults) {
  GenerationOptions options;
  options.sampling.temperature = defaults.temperature;
  options.sampling.top_p = defaults.top_p;
  options.spec = defaults.spec;
  options.timings = defaults.timings;
  return options;
}

Result<JsonDocument> parse_body(std::string_view body, const ApiLimits& limits) {
  TRY_ASSIGN(JsonDocument document, parse_json(body, kRequestName, {.max_depth = limits.json_depth}));
  TRY(document.root().members());
  return document;
}

Result<std::vector<int32_t>> read_ids(JsonValue value) {
  TRY_ASSIGN(const JsonElements elements, value.elements());
  std::vector<int32_t> ids;
  ids.reserve(elements.size());
  for (const JsonValue element : elements) {
    TRY_ASSIGN(const int64_t id, element.as_int(0, kMaxInt32));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

// --- completions ---

// A string, strings, token ids, or arrays of them.
Status read_prompt(JsonValue value, CompletionRequest& out, const ApiLimits& limits) {
  if (value.is_string()) {
    out.prompts.emplace_back(std::string(*value.as_string()));
    return {};
  }
  if (!value.is_array())
    return value.error(Code::kInvalidArgument,
                       fmt::format("is {}, must be a string, token ids, or an array of these", value.text()));
  const JsonElements elements = *value.elements();
  if (elements.size() == 0) return value.error(Code::kInvalidArgument, "is empty");
  if ((*elements.begin()).is_number()) {
    TRY_ASSIGN(out.prompts.emplace_back(), read_ids(value));
    return {};
  }
  if (std::cmp_greater(elements.size(), limits.prompts))
    return value.error(Code::kInvalidArgument,
                       fmt::format("has {} prompts, at most {} are accepted", elements.size(), limits.prompts));
  const bool texts = (*elements.begin()).is_string();
  for (const JsonValue element : elements) {
    if (texts) {
      TRY_ASSIGN(const std::string_view text, element.as_string());
      out.prompts.emplace_back(std::string(text));
    } else {
      TRY_ASSIGN(out.prompts.emplace_back(), read_ids(element));
    }
  }
  return {};
}

Status read_echo(JsonValue value, CompletionRequest& out, const ApiLimits&) {
  TRY_ASSIGN(out.echo, value.as_bool());
  return {};
}

Status read_completion_logprobs(JsonValue value, CompletionRequest& out, const ApiLimits& limits) {
  TRY_ASSIGN(const int64_t count, value.as_int(0, limits.top_logprobs));
  out.options.sampling.logprobs = static_cast<int32_t>(count);
  return {};
}

Status read_add_special(JsonValue value, CompletionRequest& out, const ApiLimits&) {
  TRY_ASSIGN(out.add_special_tokens, value.as_bool());
  return {};
}

constexpr std::array<Field<CompletionRequest>, 4> kCompletionFields = {{
    {"prompt", read_prompt},
    {"echo", read_echo},
    {"logprobs", read_completion_logprobs},
    {"add_special_tokens", read_add_special},
}};

// --- chat ---

Status set_thinking(JsonValue value, ChatOptions& out, bool thinking) {
  if (out.thinking && *out.thinking != thinking)
    return value.error(Code::kInvalidArgument, "contradicts another field that says whether to think");
  out.thinking = thinking;
  return {};
}

// What a renderer may be told: a list of what is known, since other keys could reach its insides.
Status read_template_kwargs(JsonValue value, ChatOptions& out) {
  TRY_ASSIGN(const JsonMembers members, value.members());
  for (const auto [key, member] : members) {
    TRY_ASSIGN(const bool flag, member.as_bool());
    if (key == "thinking" || key == "enable_thinking") {
      TRY(set_thinking(member, out, flag));
    } else if (key == "preserve_thinking") {
      out.preserve_thinking = flag;
    } else {
      return value.error(Code::kUnsupported, "may have thinking, enable_thinking and preserve_thinking only");
    }
  }
  return {};
}

Status read_thinking(JsonValue value, ChatOptions& out) {
  TRY_ASSIGN(const JsonValue type, value.get("type"));
  TRY_ASSIGN(const std::string_view name, type.as_string());
  if (name == "enabled" || name == "disabled") return set_thinking(type, out, name == "enabled");
  return type.error(Code::kInvalidArgument, fmt::format("is {}, must be enabled or disabled", type.text()));
}

Status read_reasoning_effort(JsonValue value, ChatOptions& out) {
  TRY_ASSIGN(const std::string_view name, value.as_string());
  if (name == "none" || name == "minimal") return set_thinking(value, out, false);
  if (name == "low" || name == "medium" || name == "high") return set_thinking(value, out, true);
  return value.error(Code::kInvalidArgument,
                     fmt::format("is {}, must be none, minimal, low, medium or high", value.text()));
}

Status read_tool_choice(JsonValue value, ChatRequest& out, const ApiLimits&) {
  using Kind = ToolChoice::Kind;
  if (value.is_string()) {
    const std::string_view name = *value.as_string();
    if (name == "auto" || name == "none" || name == "required") {
      out.tool_choice.kind = name == "auto" ? Kind::kAuto : name == "none" ? Kind::kNone : Kind::kRequired;
      return {};
    }
    return value.error(Code::kInvalidArgument, fmt::format("is {}, must be none, auto, required or an object with "
                                                           "the function's name",
                                                           value.text()));
  }
  TRY_ASSIGN(const JsonValue function, value.get("function"));
  TRY_ASSIGN(out.tool_choice.name, function.get_string("name"));
  out.tool_choice.kind = Kind::kNamed;
  return {};
}

Status read_chat_logprobs(JsonValue value, ChatRequest& out, const ApiLimits&) {
  TRY_ASSIGN(const bool wanted, value.as_bool());
  if (wanted) out.options.sampling.logprobs = std::max(out.options.sampling.logprobs, 0);
  return {};
}

Status read_top_logprobs(JsonValue value, ChatRequest& out, const ApiLimits& limits) {
  TRY_ASSIGN(const int64_t count, value.as_int(0, limits.top_logprobs));
  if (count > 0) out.options.sampling.logprobs = static_cast<int32_t>(count);
  return {};
}

Status read_parallel(JsonValue value, ChatRequest& out, const ApiLimits&) {
  TRY_ASSIGN(out.parallel_tool_calls, value.as_bool());
  return {};
}

Status read_add_generation_prompt(JsonValue value, ChatOptions& out) {
  TRY_ASSIGN(out.add_generation_prompt, value.as_bool());
  return {};
}

Status read_continue_final_message(JsonValue value, ChatOptions& out) {
  TRY_ASSIGN(out.continue_final_message, value.as_bool());
  return {};
}

template <Status (*kRead)(JsonValue, ChatOptions&)>
Status read_prompt_option(JsonValue value, ChatRequest& out, const ApiLimits&) {
  return kRead(value, out.prompt);
}

// Read together, once all fields have been seen.
Status read_later(JsonValue, ChatRequest&, const ApiLimits&) { return {}; }

constexpr std::array<Field<ChatRequest>, 11> kChatFields = {{
    {"messages", read_later},
    {"tools", read_later},
    {"tool_choice", read_tool_choice},
    {"parallel_tool_calls", read_parallel},
    {"chat_template_kwargs", read_prompt_option<read_template_kwargs>},
    {"thinking", read_prompt_option<read_thinking>},
    {"reasoning_effort", read_prompt_option<read_reasoning_effort>},
    {"add_generation_prompt", read_prompt_option<read_add_generation_prompt>},
    {"continue_final_message", read_prompt_option<read_continue_final_message>},
    {"logprobs", read_chat_logprobs},
    {"top_logprobs", read_top_logprobs},
}};

constexpr std::array<DefaultField, 6> kChatDefaults = {{
    {"functions", "[]"},
    {"function_call", "\"none\""},
    {"audio", "null"},
    {"prediction", "null"},
    {"web_search_options", "null"},
    {"echo", "false"},
}};

Result<Chat> read_chat(JsonValue root, const ApiLimits& limits) {
  TRY_ASSIGN(const JsonValue messages, root.get("messages"));
  const std::optional<JsonValue> tools = root.find("tools");
  const ChatLimits chat_limits = {.messages = static_cast<size_t>(limits.messages),
                                  .tools = static_cast<size_t>(limits.tools),
                                  .tool_bytes = limits.tools_bytes,
                                  .arguments_depth = limits.json_depth};
  return parse_chat(messages, tools ? &*tools : nullptr, chat_limits);
}

// The beginning of a reply and the end of an open message exclude each other; who asks for the latter need not forbid
// the former.
Status check_prompt_options(JsonValue root, ChatOptions& options) {
  if (!options.continue_final_message) return {};
  TRY_ASSIGN(const std::optional<bool> begin, root.find_bool("add_generation_prompt"));
  if (begin.value_or(false))
    return root.find("continue_final_message")
        ->error(Code::kInvalidArgument, "and add_generation_prompt exclude each other");
  options.add_generation_prompt = false;
  return {};
}

Status check_tool_choice(JsonValue root, const ChatRequest& request) {
  using Kind = ToolChoice::Kind;
  const ToolChoice& choice = request.tool_choice;
  if (choice.kind == Kind::kAuto || choice.kind == Kind::kNone) return {};
  const JsonValue value = *root.find("tool_choice");
  if (request.chat.tools.empty()) return value.error(Code::kInvalidArgument, "needs tools to choose from");
  if (choice.kind == Kind::kRequired) return {};
  for (const ChatTool& tool : request.chat.tools)
    if (tool.name == choice.name) return {};
  return value.error(Code::kInvalidArgument, "names a function that is not among the tools");
}

Status check_chat(JsonValue root, ChatRequest& request) {
  TRY(check_prompt_options(root, request.prompt));
  TRY(check_tool_choice(root, request));
  TRY_ASSIGN(const std::optional<bool> logprobs, root.find_bool("logprobs"));
  if (request.options.sampling.logprobs > 0 && !logprobs.value_or(false))
    return root.find("top_logprobs")->error(Code::kInvalidArgument, "needs logprobs: true");
  return {};
}

}  // namespace

Result<CompletionRequest> parse_completion_request(std::string_view body, const ApiLimits& limits,
                                                   const RequestDefaults& defaults) {
  TRY_ASSIGN(const JsonDocument document, parse_body(body, limits));
  CompletionRequest request;
  request.options = initial_options(defaults);
  TRY(read_fields<CompletionRequest>(document.root(), kCompletionFields, {}, limits, request));
  TRY(document.root().get("prompt"));
  if (request.echo && request.options.sampling.logprobs >= 0)
    return document.root().find("echo")->error(Code::kUnsupported,
                                               "together with logprobs is not supported: prompts are not scored");
  return request;
}

Result<ChatRequest> parse_chat_request(std::string_view body, const ApiLimits& limits,
                                       const RequestDefaults& defaults) {
  TRY_ASSIGN(JsonDocument document, parse_body(body, limits));
  ChatRequest request(std::move(document));
  request.options = initial_options(defaults);
  const JsonValue root = request.document.root();
  TRY(read_fields<ChatRequest>(root, kChatFields, kChatDefaults, limits, request));
  TRY_ASSIGN(request.chat, read_chat(root, limits));
  TRY(check_chat(root, request));
  return request;
}

Result<TokenizeRequest> parse_tokenize_request(std::string_view body, const ApiLimits& limits) {
  TRY_ASSIGN(JsonDocument document, parse_body(body, limits));
  TokenizeRequest request(std::move(document));
  const JsonValue root = request.document.root();
  TRY_ASSIGN(const std::optional<std::string_view> model, root.find_string("model"));
  TRY_ASSIGN(const std::optional<bool> special, root.find_bool("add_special_tokens"));
  TRY_ASSIGN(const std::optional<bool> strings, root.find_bool("return_token_strs"));
  request.model = model.value_or("");
  request.add_special_tokens = special.value_or(false);
  request.return_token_strs = strings.value_or(false);
  if (!root.find("messages")) {
    TRY_ASSIGN(request.text, root.get_string("prompt"));
    return request;
  }
  TRY_ASSIGN(request.chat, read_chat(root, limits));
  TRY_ASSIGN(const std::optional<bool> begin, root.find_bool("add_generation_prompt"));
  TRY_ASSIGN(const std::optional<bool> open, root.find_bool("continue_final_message"));
  request.prompt.add_generation_prompt = begin.value_or(true);
  request.prompt.continue_final_message = open.value_or(false);
  if (const auto kwargs = root.find("chat_template_kwargs"); kwargs && !kwargs->is_null())
    TRY(read_template_kwargs(*kwargs, request.prompt));
  TRY(check_prompt_options(root, request.prompt));
  return request;
}

Result<DetokenizeRequest> parse_detokenize_request(std::string_view body, const ApiLimits& limits) {
  TRY_ASSIGN(const JsonDocument document, parse_body(body, limits));
  DetokenizeRequest request;
  TRY_ASSIGN(const std::optional<std::string_view> model, document.root().find_string("model"));
  request.model = model.value_or("");
  TRY_ASSIGN(const JsonValue tokens, document.root().get("tokens"));
  TRY_ASSIGN(request.tokens, read_ids(tokens));
  return request;
}

}  // namespace ddtree
