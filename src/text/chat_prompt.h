// What a renderer writes a prompt with: the template's own words and the text of messages, kept apart.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace ddtree {

// The control tokens of a family's template. A vocabulary must have all of them.
std::span<const std::string_view> chat_markers(ChatFamily family);

// Text between two control tokens is encoded in one go, whoever wrote its parts. A reference that tokenises the whole
// rendering does the same, since control tokens split its text before anything else does.
class ChatPromptBuilder {
 public:
  ChatPromptBuilder(const Tokenizer& tokenizer, ChatFamily family)
      : tokenizer_(tokenizer), markers_(chat_markers(family)) {}

  // Words of the template: the family's markers in them become control tokens.
  ChatPromptBuilder& literal(std::string_view words);
  // Text of the client: never a control token.
  ChatPromptBuilder& text(std::string_view text);

  Result<std::vector<int32_t>> finish() &&;

 private:
  void flush();

  const Tokenizer& tokenizer_;
  std::span<const std::string_view> markers_;
  std::vector<int32_t> ids_;
  std::string run_;  // text since the last control token
  Status status_;    // of the first text that could not be encoded
};

// The text parts of a message, joined.
std::string joined_content(const ChatMessage& message, std::string_view separator);

// Each family's template, without the beginning of a reply. `thinking` is resolved.
struct ChatTemplateInput {
  const Chat& chat;
  bool thinking;
  bool preserve_thinking;
  bool add_generation_prompt;
  bool open_end;  // the last message is not closed

  bool closes(size_t message) const { return !open_end || message + 1 < chat.messages.size(); }
};

void render_kimi(ChatFamily family, const ChatTemplateInput& input, ChatPromptBuilder& out);
void render_deepseek_v3(const ChatTemplateInput& input, ChatPromptBuilder& out);
void render_qwen3(const ChatTemplateInput& input, ChatPromptBuilder& out);
void render_chatml(const ChatTemplateInput& input, ChatPromptBuilder& out);

}  // namespace ddtree
