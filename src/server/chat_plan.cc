#include "server/chat_plan.h"

#include <string>
#include <utility>

#include <fmt/core.h>

#include "base/json_writer.h"

namespace ddtree {
namespace {

using Kind = ToolChoice::Kind;

bool is_forced(const ToolChoice& choice) { return choice.kind == Kind::kRequired || choice.kind == Kind::kNamed; }

bool is_kimi(ChatFamily family) { return family <= ChatFamily::kKimiK25; }

Status append_marker(const Tokenizer& tokenizer, std::string_view name, std::vector<int32_t>& ids) {
  const std::optional<int32_t> id = tokenizer.special_id(name);
  if (!id) return Error{Code::kUnsupported, fmt::format("tool_choice: the model's vocabulary has no {}", name)};
  ids.push_back(*id);
  return {};
}

Status append_text(const Tokenizer& tokenizer, std::string_view text, std::vector<int32_t>& ids) {
  TRY_ASSIGN(const std::vector<int32_t> encoded, tokenizer.encode(text));
  ids.insert(ids.end(), encoded.begin(), encoded.end());
  return {};
}

// Kimi counts the calls of a conversation in their ids.
Status begin_kimi_call(const Tokenizer& tokenizer, const ChatRequest& request, std::vector<int32_t>& ids) {
  TRY(append_marker(tokenizer, "<|tool_calls_section_begin|>", ids));
  TRY(append_marker(tokenizer, "<|tool_call_begin|>", ids));
  if (request.tool_choice.kind != Kind::kNamed) return {};
  size_t calls = 0;
  for (const ChatMessage& message : request.chat.messages) calls += message.tool_calls.size();
  TRY(append_text(tokenizer, fmt::format("functions.{}:{}", request.tool_choice.name, calls), ids));
  return append_marker(tokenizer, "<|tool_call_argument_begin|>", ids);
}

Status begin_qwen_call(const Tokenizer& tokenizer, const ChatRequest& request, std::vector<int32_t>& ids) {
  TRY(append_marker(tokenizer, "<tool_call>", ids));
  if (request.tool_choice.kind != Kind::kNamed) return append_text(tokenizer, "\n{\"name\": \"", ids);
  return append_text(tokenizer, fmt::format("\n{{\"name\": \"{}\", \"arguments\": ", request.tool_choice.name), ids);
}

// The beginning of a reply that can only go on with a call.
Result<std::vector<int32_t>> begin_call(ChatFamily family, const Tokenizer& tokenizer, const ChatRequest& request) {
  std::vector<int32_t> ids;
  if (is_kimi(family)) {
    TRY(begin_kimi_call(tokenizer, request, ids));
  } else if (family == ChatFamily::kQwen3) {
    TRY(begin_qwen_call(tokenizer, request, ids));
  } else {
    return Error{Code::kUnsupported,
                 fmt::format("tool_choice: the {} template cannot be made to call a tool", chat_family_name(family))};
  }
  return ids;
}

}  // namespace

Result<GenerationPlan> plan_chat(const ChatRenderer& renderer, const Tokenizer& tokenizer, bool split_reasoning,
                                 ChatRequest& request) {
  const ChatFamily family = renderer.family();
  const bool forced = is_forced(request.tool_choice);
  if (request.tool_choice.kind == Kind::kNone) request.chat.tools.clear();
  if (forced && !request.prompt.thinking && (family == ChatFamily::kKimiK25 || family == ChatFamily::kQwen3))
    request.prompt.thinking = false;  // the reply begins with the call
  GenerationPlan plan;
  TRY_ASSIGN(ChatPrompt prompt, renderer.render(request.chat, request.prompt));
  if (forced && prompt.in_reasoning)
    return Error{Code::kUnsupported, "tool_choice: a reply that must call a tool cannot begin with thinking"};
  if (forced) {
    TRY_ASSIGN(plan.begun, begin_call(family, tokenizer, request));
    prompt.ids.insert(prompt.ids.end(), plan.begun.begin(), plan.begun.end());
  }
  plan.ends_after_call = !request.parallel_tool_calls || request.tool_choice.kind == Kind::kNamed;
  ReplyOptions reply = {.in_reasoning = prompt.in_reasoning,
                        .split_reasoning = split_reasoning,
                        .skip_special = request.options.skip_special_tokens,
                        .tools = {}};
  if (plan.ends_after_call) reply.max_calls = 1;
  for (const ChatTool& tool : request.chat.tools) reply.tools.push_back(tool.name);
  plan.parser.emplace(tokenizer, family, std::move(reply));
  plan.prompts.push_back({std::move(prompt.ids), {}});
  return plan;
}

}  // namespace ddtree
