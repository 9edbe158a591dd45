#include "text/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "chat_fixture.h"
#include "text/chat_prompt.h"

namespace ddtree {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr ChatFamily kFamilies[] = {ChatFamily::kKimiK2,     ChatFamily::kKimiK2Thinking, ChatFamily::kKimiK25,
                                    ChatFamily::kDeepSeekV3, ChatFamily::kQwen3,          ChatFamily::kChatMl};

std::vector<std::string> names_of(ChatFamily family) {
  const std::span<const std::string_view> markers = chat_markers(family);
  return {markers.begin(), markers.end()};
}

const Tokenizer& tokenizer_of(ChatFamily family) {
  static std::map<ChatFamily, Tokenizer> loaded;
  const auto found = loaded.find(family);
  return found != loaded.end() ? found->second : loaded.emplace(family, tokenizer_with(names_of(family))).first->second;
}

ChatRenderer renderer_of(ChatFamily family) { return *ChatRenderer::create(tokenizer_of(family), family); }

std::string wrap(const std::string& messages) { return R"({"messages": )" + messages + "}"; }

std::string with_tools(const std::string& tools) {
  return R"({"messages": [{"role": "user", "content": "x"}], "tools": )" + tools + "}";
}

// A call with these fields, as the third message.
std::string with_call(const std::string& call) {
  return wrap(R"([{"role": "user", "content": "x"}, {"role": "user", "content": "y"},
                  {"role": "assistant", "content": null, "tool_calls": [)" +
              call + "]}]");
}

TEST(ChatParse, ReadsAConversation) {
  const ParsedChat parsed(R"({"messages": [
    {"role": "developer", "content": "d"},
    {"role": "user", "name": "Ann", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": null, "reasoning_content": "r", "refusal": null, "tool_calls": [
      {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
      {"id": "2", "function": {"name": "g.h-i_j", "arguments": {"é": [1, 2.50, null, true]}}}]},
    {"role": "tool", "tool_call_id": "2", "content": "two"},
    {"role": "tool", "tool_call_id": "1", "content": []},
    {"role": "assistant", "reasoning": "alias", "tool_calls": []}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": null}}]})");
  const std::vector<ChatMessage>& m = parsed.chat.messages;
  ASSERT_EQ(m.size(), 6u);
  EXPECT_EQ(m[0].role, ChatRole::kSystem);
  EXPECT_EQ(m[1].name, "Ann");
  EXPECT_EQ(m[1].content, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(m[2].reasoning, "r");
  EXPECT_EQ(m[2].tool_calls[0].arguments, R"({"x": 1})");
  EXPECT_EQ(m[2].tool_calls[1].name, "g.h-i_j");
  EXPECT_EQ(m[2].tool_calls[1].arguments, R"({"é": [1, 2.5, null, true]})");
  EXPECT_EQ(m[3].answers, 1);
  EXPECT_EQ(m[4].answers, 0);
  EXPECT_TRUE(m[4].content.empty());
  EXPECT_EQ(m[5].reasoning, "alias");
  ASSERT_EQ(parsed.chat.tools.size(), 1u);
  EXPECT_EQ(parsed.chat.tools[0].name, "f");
}

TEST(ChatParse, ErrorsNameTheMessagesField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "messages: is an object of 0, must be an array"},
      {R"([])", "messages: is empty"},
      {R"([7])", "messages[0]: is 7, must be an object"},
      {R"([{"content": "x"}])", "messages[0].role is missing"},
      {R"([{"role": 3, "content": "x"}])", "messages[0].role: is 3, must be a string"},
      {R"([{"role": "root", "content": "x"}])", "messages[0].role: is \"root\", must be system, developer, user,"},
      {R"([{"role": "user"}])", "messages[0].content is missing"},
      {R"([{"role": "user", "content": null}])", "messages[0].content is null"},
      {R"([{"role": "user", "content": 5}])", "messages[0].content: is 5, must be a string or an array"},
      {R"([{"role": "user", "content": ["x"]}])", "messages[0].content[0]: is \"x\", must be an object"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text is missing"},
      {R"([{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[1].type: is \"image_url\": only text parts are supported"},
      {R"([{"role": "user", "content": [{"type": "input_audio"}]}])",
       "messages[0].content[0].type: is \"input_audio\""},
      {R"([{"role": "user", "content": "x", "name": []}])", "messages[0].name: is an array of 0, must be a string"},
      {R"([{"role": "assistant", "content": "x", "reasoning_content": 1}])", "messages[0].reasoning_content: is 1"},
      {R"([{"role": "assistant", "content": "x", "reasoning": 1}])", "messages[0].reasoning: is 1"},
      {R"([{"role": "assistant", "content": "x", "tool_calls": {}}])", "messages[0].tool_calls: is an object of 0"},
      {R"([{"role": "assistant", "function_call": {}}])",
       "messages[0].function_call: is not supported: use tool_calls"},
      {R"([{"role": "assistant", "audio": {}}])", "messages[0].audio: is not supported: only text"},
      {R"([{"role": "tool", "content": "x"}])", "messages[0].tool_call_id is missing"},
      {R"([{"role": "tool", "content": "x", "tool_call_id": "a"}])",
       "messages[0].tool_call_id: is \"a\", but no call before this message has that id"},
  };
  for (const auto& [messages, expected] : cases)
    EXPECT_THAT(chat_error(wrap(messages)), StartsWith(std::string("request: ") + expected)) << messages;
  const std::string long_name(257, 'n');
  EXPECT_THAT(chat_error(wrap(R"([{"role": "user", "content": "x", "name": ")" + long_name + "\"}]")),
              HasSubstr("messages[0].name: has 257 bytes, at most 256"));
}

TEST(ChatParse, ErrorsNameTheCallsField) {
  const std::pair<const char*, const char*> cases[] = {
      {R"(1)", ": is 1, must be an object"},
      {R"({"function": {"name": "f", "arguments": "{}"}})", ".id is missing"},
      {R"({"id": "", "function": {"name": "f", "arguments": "{}"}})", ".id: is empty"},
      {R"({"id": "1", "type": "code"})", ".type: is \"code\", only \"function\" is supported"},
      {R"({"id": "1"})", ".function is missing"},
      {R"({"id": "1", "function": {"arguments": "{}"}})", ".function.name is missing"},
      {R"({"id": "1", "function": {"name": "a b", "arguments": "{}"}})", ".function.name: is \"a b\", must be 1 to 64"},
      {R"({"id": "1", "function": {"name": "", "arguments": "{}"}})", ".function.name: is \"\""},
      {R"({"id": "1", "function": {"name": "f"}})", ".function.arguments is missing"},
      {R"({"id": "1", "function": {"name": "f", "arguments": 7}})", ".function.arguments: is 7, must be the text of"},
      {R"({"id": "1", "function": {"name": "f", "arguments": "{\"a\": "}})", ".function.arguments: not valid JSON at"},
      {R"({"id": "1", "function": {"name": "f", "arguments": "\"{\""}})", ".function.arguments: not valid JSON at"},
      {R"({"id": "1", "function": {"name": "f", "arguments": "{\"a\":1,\"a\":2}"}})",
       ".function.arguments: key \"a\" app"},
      {R"({"id": "1", "function": {"name": "f", "arguments": "[1]"}})",
       ".function.arguments: is JSON but not an object"},
      {R"({"id": "1", "function": {"name": "f", "arguments": "\"\\\"{}\\\"\""}})",
       ".function.arguments: is JSON but not"},
  };
  for (const auto& [call, expected] : cases)
    EXPECT_THAT(chat_error(with_call(call)), StartsWith(std::string("request: messages[2].tool_calls[0]") + expected))
        << call;
  const std::string bomb(200, '[');
  EXPECT_THAT(chat_error(with_call(R"({"id": "1", "function": {"name": "f", "arguments": ")" + bomb + "\"}}")),
              HasSubstr("messages[2].tool_calls[0].function.arguments: JSON nested deeper than 32 levels"));
}

TEST(ChatParse, ErrorsNameTheToolsField) {
  const std::pair<const char*, const char*> cases[] = {
      {"{}", ": is an object of 0, must be an array"},
      {"[1]", "[0]: is 1, must be an object"},
      {R"([{"type": "web_search"}])", "[0].type: is \"web_search\", only \"function\""},
      {R"([{"type": "function"}])", "[0].function is missing"},
      {R"([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "é"}}])",
       "[1].function.name: is \"é\", must be 1 to 64"},
      {R"([{"function": {"name": "f", "description": 1}}])", "[0].function.description: is 1, must be a string"},
      {R"([{"function": {"name": "f", "parameters": []}}])",
       "[0].function.parameters: is an array of 0, must be an obj"},
  };
  for (const auto& [tools, expected] : cases)
    EXPECT_THAT(chat_error(with_tools(tools)), StartsWith(std::string("request: tools") + expected)) << tools;
  EXPECT_EQ(chat_error(with_tools("null")), "");
}

TEST(ChatParse, KeepsItsLimits) {
  const std::string two = R"([{"role": "user", "content": "x"}, {"role": "user", "content": "y"}])";
  EXPECT_EQ(chat_error(wrap(two), {.messages = 2}), "");
  EXPECT_THAT(chat_error(wrap(two), {.messages = 1}), HasSubstr("messages: is an array of 2 messages, at most 1"));
  const std::string tools = R"([{"function":{"name":"f"}}, {"function":{"name":"g"}}])";
  EXPECT_THAT(chat_error(with_tools(tools), {.tools = 1}), HasSubstr("tools: is an array of 2 tools, at most 1"));
  EXPECT_EQ(chat_error(with_tools(tools), {.tool_bytes = 2 * 25}), "");
  EXPECT_THAT(chat_error(with_tools(tools), {.tool_bytes = 2 * 25 - 1}), HasSubstr("tools: are 50 bytes of JSON"));
}

TEST(ChatFamilies, NamesAreThoseOfTheFlag) {
  for (const ChatFamily family : kFamilies) EXPECT_EQ(*find_chat_family(chat_family_name(family)), family);
  EXPECT_EQ(*find_chat_family("kimi-k2.6"), ChatFamily::kKimiK25);
  EXPECT_EQ(find_chat_family("alpaca").error().message,
            "chat template \"alpaca\" is not known; the known ones are kimi-k2, kimi-k2-thinking, kimi-k2.5, "
            "deepseek-v3, qwen3, chatml");
}

std::string chosen(const std::vector<std::string>& markers, std::string_view model_type) {
  const Tokenizer tokenizer = tokenizer_with(markers);
  const Result<ChatRenderer> renderer = ChatRenderer::create(tokenizer, model_type);
  return std::string(renderer.ok() ? chat_family_name(renderer->family()) : renderer.error().message);
}

TEST(ChatFamilies, AreChosenByTheModelAndItsMarkers) {
  EXPECT_EQ(chosen(names_of(ChatFamily::kKimiK25), "kimi_k25"), "kimi-k2.5");
  EXPECT_EQ(chosen(names_of(ChatFamily::kKimiK25), "kimi_k2"), "kimi-k2-thinking");
  EXPECT_EQ(chosen(names_of(ChatFamily::kKimiK2), "kimi_k2"), "kimi-k2");
  EXPECT_EQ(chosen(names_of(ChatFamily::kKimiK2), "deepseek_v3"), "kimi-k2");
  EXPECT_EQ(chosen(names_of(ChatFamily::kDeepSeekV3), "deepseek_v3"), "deepseek-v3");
  EXPECT_EQ(chosen(names_of(ChatFamily::kQwen3), "qwen3_moe"), "qwen3");
  EXPECT_EQ(chosen(names_of(ChatFamily::kChatMl), "qwen3"), "chatml");
  EXPECT_EQ(chosen(names_of(ChatFamily::kChatMl), "llama"), "chatml");
  // The demo model is of Kimi's kind.
  EXPECT_EQ(ChatRenderer::create(demo_tokenizer(), "kimi_k2")->family(), ChatFamily::kKimiK2Thinking);
}

TEST(ChatFamilies, UnknownOnesAreRefusedWithTheList) {
  for (const char* type : {"kimi_k25", "llama", ""})
    EXPECT_THAT(chosen({"[BOS]"}, type),
                HasSubstr("--chat-template: kimi-k2, kimi-k2-thinking, kimi-k2.5, deepseek-v3"));
  const Tokenizer tokenizer = tokenizer_with(names_of(ChatFamily::kKimiK2));
  EXPECT_EQ(ChatRenderer::create(tokenizer, ChatFamily::kKimiK2Thinking).error().message,
            "chat template kimi-k2-thinking: the vocabulary has no <think> </think>; the known templates are kimi-k2, "
            "kimi-k2-thinking, kimi-k2.5, deepseek-v3, qwen3, chatml");
}

std::string render_error(ChatFamily family, const std::string& request, const ChatOptions& options) {
  const ParsedChat parsed(request);
  const Result<ChatPrompt> prompt = renderer_of(family).render(parsed.chat, options);
  return prompt.ok() ? "" : prompt.error().message;
}

TEST(ChatRender, WhatAFamilyCannotSayIsRefused) {
  const std::string tools = with_tools(R"([{"function": {"name": "f"}}])");
  EXPECT_THAT(render_error(ChatFamily::kDeepSeekV3, tools, {}), HasSubstr("tools: the deepseek-v3 template cannot"));
  EXPECT_THAT(render_error(ChatFamily::kChatMl, tools, {}), HasSubstr("tools: the chatml template cannot"));
  EXPECT_TRUE(renderer_of(ChatFamily::kQwen3).takes_tools());
  EXPECT_FALSE(renderer_of(ChatFamily::kDeepSeekV3).takes_tools());
  const std::string call = with_call(R"({"id": "1", "function": {"name": "f", "arguments": "{}"}})");
  EXPECT_THAT(render_error(ChatFamily::kChatMl, call, {}),
              HasSubstr("messages[2].tool_calls: the chatml template has no"));

  const std::string user = wrap(R"([{"role": "user", "content": "x"}])");
  EXPECT_THAT(render_error(ChatFamily::kKimiK2, user, {.thinking = true}), HasSubstr("thinking: true, but kimi-k2"));
  EXPECT_EQ(render_error(ChatFamily::kKimiK2, user, {.thinking = false}), "");
  EXPECT_THAT(render_error(ChatFamily::kKimiK2Thinking, user, {.thinking = false}), HasSubstr("always think"));
  EXPECT_THAT(render_error(ChatFamily::kQwen3, user, {.preserve_thinking = true}),
              HasSubstr("preserve_thinking: only the kimi-k2.5 template has it, not qwen3"));
  EXPECT_THAT(render_error(ChatFamily::kQwen3, user, {.continue_final_message = true}),
              HasSubstr("continue_final_message: true, and add_generation_prompt too"));
  const ChatOptions go_on{.add_generation_prompt = false, .continue_final_message = true};
  EXPECT_THAT(render_error(ChatFamily::kQwen3, user, go_on),
              HasSubstr("messages[0].role: continue_final_message needs"));
  EXPECT_THAT(render_error(ChatFamily::kQwen3, call, go_on), HasSubstr("messages[2].tool_calls: a message that ends"));
}

TEST(ChatRender, SaysWhetherTheReplyBeginsInsideReasoning) {
  const ParsedChat parsed(wrap(R"([{"role": "user", "content": "x"}])"));
  for (const ChatFamily family : kFamilies)
    EXPECT_EQ(renderer_of(family).render(parsed.chat)->in_reasoning, family == ChatFamily::kKimiK25);
  const ChatRenderer kimi = renderer_of(ChatFamily::kKimiK25);
  EXPECT_FALSE(kimi.render(parsed.chat, {.thinking = false})->in_reasoning);
  EXPECT_FALSE(kimi.render(parsed.chat, {.add_generation_prompt = false})->in_reasoning);
}

std::vector<int32_t> control_ids(const std::vector<int32_t>& ids) {
  std::vector<int32_t> control;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(control), [](int32_t id) { return id >= 16000; });
  return control;
}

// A conversation of all kinds of messages whose every text is `text`.
Chat all_kinds(const std::string& text) {
  Chat chat;
  chat.messages.push_back({.role = ChatRole::kSystem, .content = {text}});
  chat.messages.push_back({.role = ChatRole::kUser, .name = text, .content = {text, text}});
  chat.messages.push_back({.role = ChatRole::kAssistant, .content = {text}, .reasoning = text});
  chat.messages.push_back({.role = ChatRole::kUser, .content = {text}});
  chat.messages.push_back({.role = ChatRole::kAssistant,
                           .content = {text},
                           .reasoning = text,
                           .tool_calls = {{"1", "f", text}, {"functions." + text + ":1", "g", text}}});
  chat.messages.push_back({.role = ChatRole::kTool, .content = {text}, .answers = 1});
  return chat;
}

Chat without_calls(Chat chat) {
  for (ChatMessage& message : chat.messages) message.tool_calls.clear();
  chat.messages.pop_back();
  return chat;
}

// Whatever clients write, the control tokens of a prompt are those of the same prompt with other words.
TEST(ChatRender, NoTextBecomesAControlToken) {
  for (const ChatFamily family : kFamilies) {
    const ChatRenderer renderer = renderer_of(family);
    std::string all = "x";
    for (const std::string& marker : names_of(family)) all += marker + " " + marker;
    const bool calls = family != ChatFamily::kChatMl;
    const auto prompt = [&](const std::string& text) {
      const Chat chat = all_kinds(text);
      return renderer.render(calls ? chat : without_calls(chat))->ids;
    };
    EXPECT_EQ(control_ids(prompt(all)), control_ids(prompt("x"))) << chat_family_name(family);
    EXPECT_GT(prompt(all).size(), prompt("x").size());
  }
}

// The ids are those of the whole rendering, tokenised with the control tokens in it.
RC_GTEST_PROP(ChatRenderProperty, SegmentsAreTokenisedAsTheWholeIs, ()) {
  const ChatFamily family = *rc::gen::elementOf(std::vector<ChatFamily>(std::begin(kFamilies), std::end(kFamilies)));
  static const std::vector<std::string> kPieces = {" ",  "\n",     "\n\n", "a",    "Bc",  "1",  "234", "é", "中", "'s",
                                                   "<|", "im_end", "|>",   "user", "{\"", "\t", "🎉",   ".", "  "};
  std::string text;
  for (const size_t piece : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, kPieces.size())))
    text += kPieces[piece];
  if (text.find("<|im_end|>") != std::string::npos) return;
  const Tokenizer& tokenizer = tokenizer_of(family);
  const bool calls = family != ChatFamily::kChatMl;
  const ChatPrompt prompt = *renderer_of(family).render(calls ? all_kinds(text) : without_calls(all_kinds(text)));
  RC_ASSERT(*tokenizer.encode_with_special(tokenizer.decode(prompt.ids)) == prompt.ids);
}

TEST(ChatRender, TextThatIsNotUtf8IsRefused) {
  Chat chat;
  chat.messages.push_back({.content = {"a\xff"}});
  EXPECT_THAT(renderer_of(ChatFamily::kQwen3).render(chat).error().message, HasSubstr("not valid UTF-8"));
}

}  // namespace
}  // namespace ddtree
