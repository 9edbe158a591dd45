// Qwen3, and plain ChatML.
#include <algorithm>

#include "text/chat_json.h"
#include "text/chat_prompt.h"

namespace ddtree {
namespace {

constexpr std::string_view kToolsHead =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr std::string_view kToolsTail =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": "
    "<args-json-object>}\n</tool_call>";

std::string_view strip_left(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of('\n'), text.size()));
}

std::string_view strip_right(std::string_view text) { return text.substr(0, text.find_last_not_of('\n') + 1); }

// An assistant's message; reasoning that a client left inside its text is taken out of it.
struct Answer {
  std::string content;
  std::string reasoning;

  explicit Answer(const ChatMessage& message) : content(joined_content(message, "\n")) {
    constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
    if (message.reasoning) {
      reasoning = *message.reasoning;
    } else if (const size_t end = content.find(kEnd); end != std::string::npos) {
      std::string_view before = strip_right(std::string_view(content).substr(0, end));
      if (const size_t begin = before.rfind(kBegin); begin != std::string::npos)
        before.remove_prefix(begin + kBegin.size());
      reasoning = strip_left(before);
      content = std::string(strip_left(std::string_view(content).substr(content.rfind(kEnd) + kEnd.size())));
    }
  }
};

class QwenRenderer {
 public:
  QwenRenderer(const ChatTemplateInput& input, ChatPromptBuilder& out)
      : input_(input), messages_(input.chat.messages), out_(out) {}

  void render() {
    const bool leads = messages_.front().role == ChatRole::kSystem;
    if (!input_.chat.tools.empty())
      tools(leads ? joined_content(messages_.front(), "\n") + "\n\n" : "");
    else if (leads)
      plain("system", messages_.front());
    const size_t query = last_query();
    for (size_t i = 0; i < messages_.size(); ++i) {
      const ChatMessage& message = messages_[i];
      switch (message.role) {
        case ChatRole::kSystem:
          if (i > 0) plain("system", message);
          break;
        case ChatRole::kUser: plain("user", message); break;
        case ChatRole::kAssistant: answer(message, i, i > query); break;
        case ChatRole::kTool: result(message, i); break;
      }
    }
    if (!input_.add_generation_prompt) return;
    out_.literal("<|im_start|>assistant\n");
    if (!input_.thinking) out_.literal("<think>\n\n</think>\n\n");
  }

 private:
  void plain(std::string_view role, const ChatMessage& message) {
    out_.literal("<|im_start|>")
        .literal(role)
        .literal("\n")
        .text(joined_content(message, "\n"))
        .literal("<|im_end|>\n");
  }

  void tools(std::string_view system) {
    out_.literal("<|im_start|>system\n").text(system).literal(kToolsHead);
    for (const ChatTool& tool : input_.chat.tools) out_.literal("\n").text(tojson(tool.definition));
    out_.literal(kToolsTail).literal("<|im_end|>\n");
  }

  // The last thing that the user said, not a tool's result in a user's message; the last message where there is none.
  size_t last_query() const {
    for (size_t i = messages_.size(); i > 0; --i) {
      if (messages_[i - 1].role != ChatRole::kUser) continue;
      const std::string content = joined_content(messages_[i - 1], "\n");
      if (!content.starts_with("<tool_response>") || !content.ends_with("</tool_response>")) return i - 1;
    }
    return messages_.size() - 1;
  }

  // Reasoning is kept for the current turn only.
  void answer(const ChatMessage& message, size_t index, bool current) {
    const Answer answer(message);
    const bool last = index + 1 == messages_.size();
    out_.literal("<|im_start|>assistant\n");
    if (current && (last || !answer.reasoning.empty()))
      out_.literal("<think>\n")
          .text(strip_left(strip_right(answer.reasoning)))
          .literal("\n</think>\n\n")
          .text(strip_left(answer.content));
    else
      out_.text(answer.content);
    for (const ChatToolCall& call : message.tool_calls) {
      if (&call != &message.tool_calls.front() || !answer.content.empty()) out_.literal("\n");
      out_.literal("<tool_call>\n{\"name\": \"")
          .text(call.name)
          .literal("\", \"arguments\": ")
          .text(call.arguments)
          .literal("}\n</tool_call>");
    }
    if (input_.closes(index)) out_.literal("<|im_end|>\n");
  }

  void result(const ChatMessage& message, size_t index) {
    const auto is_result = [&](size_t i) { return messages_[i].role == ChatRole::kTool; };
    if (index == 0 || !is_result(index - 1)) out_.literal("<|im_start|>user");
    out_.literal("\n<tool_response>\n").text(joined_content(message, "\n")).literal("\n</tool_response>");
    if (index + 1 == messages_.size() || !is_result(index + 1)) out_.literal("<|im_end|>\n");
  }

  const ChatTemplateInput& input_;
  const std::vector<ChatMessage>& messages_;
  ChatPromptBuilder& out_;
};

}  // namespace

void render_qwen3(const ChatTemplateInput& input, ChatPromptBuilder& out) { QwenRenderer(input, out).render(); }

void render_chatml(const ChatTemplateInput& input, ChatPromptBuilder& out) {
  constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool"};
  for (size_t i = 0; i < input.chat.messages.size(); ++i) {
    const ChatMessage& message = input.chat.messages[i];
    out.literal("<|im_start|>")
        .literal(kRoles[static_cast<size_t>(message.role)])
        .literal("\n")
        .text(joined_content(message, "\n"));
    if (input.closes(i)) out.literal("<|im_end|>\n");
  }
  if (input.add_generation_prompt) out.literal("<|im_start|>assistant\n");
}

}  // namespace ddtree
