// Kimi K2, K2-Thinking, and K2.5 with K2.6.
#include <map>
#include <set>

#include "text/chat_json.h"
#include "text/chat_prompt.h"
#include "text/tool_declaration.h"

namespace ddtree {
namespace {

constexpr std::string_view kDefaultSystemPrompt = "You are Kimi, an AI assistant created by Moonshot AI.";

// Kimi's own ids, "functions.NAME:COUNTER", tell the model which function a result is of.
bool is_native_id(std::string_view id) {
  constexpr std::string_view kPrefix = "functions.";
  const size_t colon = id.rfind(':');
  return id.starts_with(kPrefix) && colon != std::string_view::npos && colon > kPrefix.size() &&
         colon + 1 < id.size() && id.find_first_not_of("0123456789", colon + 1) == std::string_view::npos;
}

// The ids of all calls in order: the model's own, and for others what the model would have said at this place.
std::vector<std::string> native_ids(const Chat& chat) {
  std::set<std::string, std::less<>> taken;
  for (const ChatMessage& message : chat.messages)
    for (const ChatToolCall& call : message.tool_calls)
      if (is_native_id(call.id)) taken.insert(call.id);

  std::vector<std::string> ids;
  size_t counter = 0;  // of foreign calls: starts at the call's place, goes on past what is taken
  for (const ChatMessage& message : chat.messages) {
    for (const ChatToolCall& call : message.tool_calls) {
      if (is_native_id(call.id)) {
        ids.push_back(call.id);
        continue;
      }
      counter = std::max(counter, ids.size());
      std::string id;
      do id = "functions." + call.name + ":" + std::to_string(counter++);
      while (taken.contains(id));
      ids.push_back(std::move(id));
    }
  }
  return ids;
}

std::string declared_tools(ChatFamily family, const Chat& chat) {
  if (family == ChatFamily::kKimiK25)
    if (std::optional<std::string> declaration = typescript_declaration(chat.tools)) return *std::move(declaration);
  std::string json = "[";
  for (const ChatTool& tool : chat.tools) {
    if (&tool != &chat.tools.front()) json += kCompactSorted.comma;
    append_tojson(tool.definition, kCompactSorted, json);
  }
  return json + "]";
}

class KimiRenderer {
 public:
  KimiRenderer(ChatFamily family, const ChatTemplateInput& input, ChatPromptBuilder& out)
      : family_(family), input_(input), out_(out), call_ids_(native_ids(input.chat)) {}

  void render() {
    const std::vector<ChatMessage>& messages = input_.chat.messages;
    if (!input_.chat.tools.empty())
      out_.literal("<|im_system|>tool_declare<|im_middle|>")
          .text(declared_tools(family_, input_.chat))
          .literal("<|im_end|>");
    if (family_ != ChatFamily::kKimiK25 && messages.front().role != ChatRole::kSystem)
      out_.literal("<|im_system|>system<|im_middle|>").literal(kDefaultSystemPrompt).literal("<|im_end|>");
    const size_t current_turn = turn_begin();
    for (size_t i = 0; i < messages.size(); ++i) {
      message(messages[i], i >= current_turn);
      if (input_.closes(i)) out_.literal("<|im_end|>");
    }
    if (!input_.add_generation_prompt) return;
    out_.literal("<|im_assistant|>assistant<|im_middle|>");
    if (family_ == ChatFamily::kKimiK25) out_.literal(input_.thinking ? "<think>" : "<think></think>");
  }

 private:
  // The messages after the last answer, an assistant's message without calls: their reasoning is kept.
  size_t turn_begin() const {
    if (input_.preserve_thinking) return 0;
    const std::vector<ChatMessage>& messages = input_.chat.messages;
    for (size_t i = messages.size(); i > 0; --i)
      if (messages[i - 1].role == ChatRole::kAssistant && messages[i - 1].tool_calls.empty()) return i;
    return 0;
  }

  void message(const ChatMessage& message, bool keeps_reasoning) {
    const auto head = [&](std::string_view marker, std::string_view role) {
      out_.literal(marker).text(message.name.empty() ? role : message.name).literal("<|im_middle|>");
    };
    switch (message.role) {
      case ChatRole::kSystem: head("<|im_system|>", "system"); break;
      case ChatRole::kUser: head("<|im_user|>", "user"); break;
      case ChatRole::kAssistant:
        head("<|im_assistant|>", "assistant");
        reasoning(message, keeps_reasoning);
        break;
      case ChatRole::kTool:
        head("<|im_system|>", "tool");
        out_.literal("## Return of ").text(call_ids_[static_cast<size_t>(message.answers)]).literal("\n");
        break;
    }
    for (const std::string& part : message.content) out_.text(part);
    calls(message);
  }

  void reasoning(const ChatMessage& message, bool keep) {
    if (family_ == ChatFamily::kKimiK2) return;
    out_.literal("<think>");
    if (keep && input_.thinking) out_.text(message.reasoning.value_or(""));
    out_.literal("</think>");
  }

  void calls(const ChatMessage& message) {
    if (message.tool_calls.empty()) return;
    out_.literal("<|tool_calls_section_begin|>");
    for (const ChatToolCall& call : message.tool_calls)
      out_.literal("<|tool_call_begin|>")
          .text(call_ids_[next_call_++])
          .literal("<|tool_call_argument_begin|>")
          .text(call.arguments)
          .literal("<|tool_call_end|>");
    out_.literal("<|tool_calls_section_end|>");
  }

  ChatFamily family_;
  const ChatTemplateInput& input_;
  ChatPromptBuilder& out_;
  std::vector<std::string> call_ids_;
  size_t next_call_ = 0;
};

}  // namespace

void render_kimi(ChatFamily family, const ChatTemplateInput& input, ChatPromptBuilder& out) {
  KimiRenderer(family, input, out).render();
}

}  // namespace ddtree
