// DeepSeek-V3, the template of V3-0324.
#include "text/chat_prompt.h"

namespace ddtree {
namespace {

void render_calls(const ChatMessage& message, ChatPromptBuilder& out) {
  for (const ChatToolCall& call : message.tool_calls) {
    const bool first = &call == &message.tool_calls.front();
    out.literal(first ? "<｜tool▁calls▁begin｜>" : "\n")
        .literal("<｜tool▁call▁begin｜>function<｜tool▁sep｜>")
        .text(call.name)
        .literal("\n```json\n")
        .text(call.arguments)
        .literal("\n```<｜tool▁call▁end｜>");
  }
  out.literal("<｜tool▁calls▁end｜>");
}

}  // namespace

void render_deepseek_v3(const ChatTemplateInput& input, ChatPromptBuilder& out) {
  out.literal("<｜begin▁of▁sentence｜>");
  bool first_system = true;
  for (const ChatMessage& message : input.chat.messages) {
    if (message.role != ChatRole::kSystem) continue;
    if (!first_system) out.literal("\n\n");
    first_system = false;
    out.text(joined_content(message, "\n"));
  }

  bool after_outputs = false;  // results of tools were the last thing
  bool first_output = true;    // since the last calls
  bool after_user = false;
  for (size_t i = 0; i < input.chat.messages.size(); ++i) {
    const ChatMessage& message = input.chat.messages[i];
    const std::string content = joined_content(message, "\n");
    switch (message.role) {
      case ChatRole::kSystem: continue;
      case ChatRole::kUser:
        out.literal("<｜User｜>").text(content).literal("<｜Assistant｜>");
        after_outputs = false;
        break;
      case ChatRole::kAssistant:
        if (after_outputs) out.literal("<｜tool▁outputs▁end｜>");
        out.text(content);
        if (!message.tool_calls.empty()) {
          render_calls(message, out);
          first_output = true;
        }
        if (input.closes(i)) out.literal("<｜end▁of▁sentence｜>");
        after_outputs = false;
        break;
      case ChatRole::kTool:
        out.literal(first_output ? "<｜tool▁outputs▁begin｜>" : "\n")
            .literal("<｜tool▁output▁begin｜>")
            .text(content)
            .literal("<｜tool▁output▁end｜>");
        first_output = false;
        after_outputs = true;
        break;
    }
    after_user = message.role == ChatRole::kUser;
  }
  if (after_outputs)
    out.literal("<｜tool▁outputs▁end｜>");
  else if (input.add_generation_prompt && !after_user)
    out.literal("<｜Assistant｜>");
}

}  // namespace ddtree
