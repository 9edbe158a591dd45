// Renderings that Jinja made of the published templates: python/golden/make_chat_fixtures.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "chat_fixture.h"
#include "text/chat.h"
#include "text/chat_json.h"
#include "text/tool_declaration.h"

namespace ddtree {
namespace {

using testing::ElementsAreArray;

const JsonDocument& fixture() {
  static const JsonDocument document = *parse_json(read_file(kFixtures + "chat.json"), "chat.json");
  return document;
}

const Tokenizer& tokenizer_of(std::string_view family) {
  static std::map<std::string, Tokenizer, std::less<>> loaded;
  const std::optional<JsonValue> added = fixture().root().find("added_tokens")->find(family);
  if (!added) return small_tokenizer();  // Kimi's own names
  if (const auto found = loaded.find(family); found != loaded.end()) return found->second;
  std::vector<std::string> names;
  for (const JsonValue name : elements_of(*added)) names.emplace_back(*name.as_string());
  return loaded.emplace(family, tokenizer_with(names)).first->second;
}

ChatOptions read_options(JsonValue options) {
  ChatOptions result;
  result.add_generation_prompt = options.find_bool("add_generation_prompt")->value_or(true);
  result.continue_final_message = options.find_bool("continue_final_message")->value_or(false);
  result.preserve_thinking = options.find_bool("preserve_thinking")->value_or(false);
  result.thinking = *options.find_bool("thinking");
  return result;
}

void check_case(JsonValue c) {
  const std::string_view family = *c.get_string("family");
  SCOPED_TRACE(std::string(family) + ": " + std::string(*c.get_string("name")));
  const Tokenizer& tokenizer = tokenizer_of(family);
  const Result<ChatRenderer> renderer = ChatRenderer::create(tokenizer, *find_chat_family(family));
  ASSERT_TRUE(renderer.ok()) << renderer.error().message;
  const std::optional<JsonValue> tools = c.find("tools");
  const Result<Chat> chat = parse_chat(*c.get("messages"), tools ? &*tools : nullptr);
  ASSERT_TRUE(chat.ok()) << chat.error().message;
  const Result<ChatPrompt> prompt = renderer->render(*chat, read_options(*c.get("options")));
  ASSERT_TRUE(prompt.ok()) << prompt.error().message;

  EXPECT_EQ(tokenizer.decode(prompt->ids), *c.get_string("text"));
  std::vector<int32_t> expected;
  for (const JsonValue id : elements_of(*c.find("ids"))) expected.push_back(static_cast<int32_t>(*id.as_int()));
  EXPECT_THAT(prompt->ids, ElementsAreArray(expected));
}

TEST(ChatGolden, PromptsAreThoseOfThePublishedTemplates) {
  size_t cases = 0;
  for (const JsonValue c : elements_of(*fixture().root().find("cases"))) {
    check_case(c);
    ++cases;
  }
  EXPECT_EQ(cases, 180u);
}

// Random schemas, also ones that upstream gives up on.
TEST(ChatGolden, ToolsAreDeclaredAsUpstreamDeclaresThem) {
  size_t written = 0;
  for (const JsonValue d : elements_of(*fixture().root().find("declarations"))) {
    std::vector<ChatTool> tools;
    for (const JsonValue tool : elements_of(*d.find("tools")))
      tools.push_back({std::string(*tool.find("function")->get_string("name")), tool});
    const std::optional<std::string> text = typescript_declaration(tools);
    const std::optional<std::string_view> expected = *d.find_string("text");
    ASSERT_EQ(text.has_value(), expected.has_value()) << tojson(*d.find("tools"));
    if (!text) continue;
    ASSERT_EQ(*text, *expected) << tojson(*d.find("tools"));
    ++written;
  }
  EXPECT_GT(written, 90u);
}

}  // namespace
}  // namespace ddtree
