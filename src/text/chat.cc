#include "text/chat.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "text/chat_prompt.h"

namespace ddtree {
namespace {

enum class Thinking : uint8_t { kNever, kAlways, kSwitched };

struct FamilyTraits {
  ChatFamily family;
  std::string_view name;
  std::span<const std::string_view> markers;
  Thinking thinking;
  bool declares_tools;
  bool renders_calls;
};

constexpr std::string_view kKimiK2Markers[] = {
    "<|im_system|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_middle|>",
    "<|im_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<think>",
    "</think>",
};
constexpr std::string_view kDeepSeekMarkers[] = {
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>",   "<｜User｜>",
    "<｜Assistant｜>",         "<｜tool▁calls▁begin｜>",  "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",   "<｜tool▁call▁end｜>",     "<｜tool▁outputs▁begin｜>",
    "<｜tool▁outputs▁end｜>",  "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>",
    "<｜tool▁sep｜>",
};
constexpr std::string_view kQwenMarkers[] = {
    "<|im_start|>", "<|im_end|>",   "<think>",         "</think>",
    "<tool_call>",  "</tool_call>", "<tool_response>", "</tool_response>",
};

constexpr std::span<const std::string_view> kKimiThinkingMarkers(kKimiK2Markers);
constexpr std::span<const std::string_view> kAllQwenMarkers(kQwenMarkers);

// In the order of ChatFamily.
constexpr std::array<FamilyTraits, 6> kFamilies = {{
    {ChatFamily::kKimiK2, "kimi-k2", kKimiThinkingMarkers.first(10), Thinking::kNever, true, true},
    {ChatFamily::kKimiK2Thinking, "kimi-k2-thinking", kKimiThinkingMarkers, Thinking::kAlways, true, true},
    {ChatFamily::kKimiK25, "kimi-k2.5", kKimiThinkingMarkers, Thinking::kSwitched, true, true},
    {ChatFamily::kDeepSeekV3, "deepseek-v3", kDeepSeekMarkers, Thinking::kNever, false, true},
    {ChatFamily::kQwen3, "qwen3", kAllQwenMarkers, Thinking::kSwitched, true, true},
    {ChatFamily::kChatMl, "chatml", kAllQwenMarkers.first(2), Thinking::kNever, false, false},
}};

const FamilyTraits& traits(ChatFamily family) { return kFamilies[static_cast<size_t>(family)]; }

std::string family_names() {
  std::vector<std::string_view> names;
  for (const FamilyTraits& family : kFamilies) names.push_back(family.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string_view> missing_markers(const Tokenizer& tokenizer, ChatFamily family) {
  std::vector<std::string_view> missing;
  for (const std::string_view marker : chat_markers(family))
    if (!tokenizer.special_id(marker)) missing.push_back(marker);
  return missing;
}

// The families that models of this type may have, the one with more markers first.
std::vector<ChatFamily> candidates(std::string_view model_type) {
  if (model_type == "kimi_k25") return {ChatFamily::kKimiK25};
  if (model_type == "kimi_k2") return {ChatFamily::kKimiK2Thinking, ChatFamily::kKimiK2};
  // Kimi's models may call themselves by their architecture.
  if (model_type == "deepseek_v3") return {ChatFamily::kDeepSeekV3, ChatFamily::kKimiK2Thinking, ChatFamily::kKimiK2};
  if (model_type.starts_with("qwen3")) return {ChatFamily::kQwen3, ChatFamily::kChatMl};
  return {ChatFamily::kChatMl};
}

Error invalid(std::string message) { return Error{Code::kInvalidArgument, std::move(message)}; }

// What the family's template has no words for is refused, never left out.
Status check_supported(const Chat& chat, const FamilyTraits& family) {
  if (!chat.tools.empty() && !family.declares_tools)
    return invalid(fmt::format("tools: the {} template cannot declare tools; leave them out", family.name));
  if (family.renders_calls) return {};
  for (size_t i = 0; i < chat.messages.size(); ++i)
    if (!chat.messages[i].tool_calls.empty())
      return invalid(fmt::format("messages[{}].tool_calls: the {} template has no tool calls", i, family.name));
  return {};
}

Status check_options(const Chat& chat, const ChatOptions& options, const FamilyTraits& family) {
  if (options.thinking.value_or(false) && family.thinking == Thinking::kNever)
    return invalid(fmt::format("thinking: true, but {} models do not think", family.name));
  if (!options.thinking.value_or(true) && family.thinking == Thinking::kAlways)
    return invalid(fmt::format("thinking: false, but {} models always think", family.name));
  if (options.preserve_thinking && family.family != ChatFamily::kKimiK25)
    return invalid(fmt::format("preserve_thinking: only the {} template has it, not {}",
                               chat_family_name(ChatFamily::kKimiK25), family.name));
  if (!options.continue_final_message) return {};
  if (options.add_generation_prompt)
    return invalid("continue_final_message: true, and add_generation_prompt too; ask for one of them");
  const ChatMessage& last = chat.messages.back();
  if (last.role != ChatRole::kAssistant)
    return invalid(fmt::format("messages[{}].role: continue_final_message needs an assistant's message at the end",
                               chat.messages.size() - 1));
  if (!last.tool_calls.empty())
    return invalid(fmt::format("messages[{}].tool_calls: a message that ends with calls cannot be continued",
                               chat.messages.size() - 1));
  return {};
}

}  // namespace

std::span<const std::string_view> chat_markers(ChatFamily family) { return traits(family).markers; }

std::string_view chat_family_name(ChatFamily family) { return traits(family).name; }

Result<ChatFamily> find_chat_family(std::string_view name) {
  if (name == "kimi-k2.6") return ChatFamily::kKimiK25;
  for (const FamilyTraits& family : kFamilies)
    if (family.name == name) return family.family;
  return invalid(fmt::format("chat template \"{}\" is not known; the known ones are {}", name, family_names()));
}

Result<ChatRenderer> ChatRenderer::create(const Tokenizer& tokenizer, std::string_view model_type) {
  for (const ChatFamily family : candidates(model_type))
    if (missing_markers(tokenizer, family).empty()) return ChatRenderer(tokenizer, family);
  return Error{
      Code::kUnsupported,
      fmt::format("model_type \"{}\" with this vocabulary has no known chat template; choose one whose control "
                  "tokens it has with --chat-template: {}",
                  model_type, family_names())};
}

Result<ChatRenderer> ChatRenderer::create(const Tokenizer& tokenizer, ChatFamily family) {
  const std::vector<std::string_view> missing = missing_markers(tokenizer, family);
  if (missing.empty()) return ChatRenderer(tokenizer, family);
  return Error{Code::kUnsupported, fmt::format("chat template {}: the vocabulary has no {}; the known templates are {}",
                                               chat_family_name(family), fmt::join(missing, " "), family_names())};
}

bool ChatRenderer::takes_tools() const { return traits(family_).declares_tools; }

Result<ChatPrompt> ChatRenderer::render(const Chat& chat, const ChatOptions& options) const {
  CHECK(!chat.messages.empty());  // parse_chat sees to it
  const FamilyTraits& family = traits(family_);
  TRY(check_supported(chat, family));
  TRY(check_options(chat, options, family));
  const ChatTemplateInput input{.chat = chat,
                                .thinking = options.thinking.value_or(true),
                                .preserve_thinking = options.preserve_thinking,
                                .add_generation_prompt = options.add_generation_prompt,
                                .open_end = options.continue_final_message};
  ChatPromptBuilder out(*tokenizer_, family_);
  switch (family_) {
    case ChatFamily::kKimiK2:
    case ChatFamily::kKimiK2Thinking:
    case ChatFamily::kKimiK25: render_kimi(family_, input, out); break;
    case ChatFamily::kDeepSeekV3: render_deepseek_v3(input, out); break;
    case ChatFamily::kQwen3: render_qwen3(input, out); break;
    case ChatFamily::kChatMl: render_chatml(input, out); break;
  }
  ChatPrompt prompt;
  TRY_ASSIGN(prompt.ids, std::move(out).finish());
  prompt.in_reasoning = family_ == ChatFamily::kKimiK25 && input.thinking && input.add_generation_prompt;
  return prompt;
}

}  // namespace ddtree
