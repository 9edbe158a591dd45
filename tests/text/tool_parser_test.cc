#include "text/tool_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "chat_fixture.h"

namespace ddtree {
namespace {

using Kind = ReplyEvent::Kind;

// What a client has after all deltas.
struct Reply {
  std::string reasoning = {};
  std::string content = {};
  struct Call {
    std::string id, name, arguments;
    bool complete = false;
    bool operator==(const Call&) const = default;
  };
  std::vector<Call> calls = {};
  bool operator==(const Reply&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Reply& reply) {
  out << "reasoning " << escaped(reply.reasoning) << ", content " << escaped(reply.content);
  for (const Reply::Call& call : reply.calls)
    out << "\n  " << escaped(call.id) << " = " << call.name << "(" << escaped(call.arguments) << ")"
        << (call.complete ? "" : "…");
  return out;
}

// Joins events, and checks that they come as a stream of deltas must.
class Joiner {
 public:
  void add(const std::vector<ReplyEvent>& events) {
    for (const ReplyEvent& event : events) add(event);
  }
  Reply reply;
  bool open = false;

 private:
  void add(const ReplyEvent& event) {
    switch (event.kind) {
      case Kind::kReasoning: reply.reasoning += delta(event); break;
      case Kind::kContent: reply.content += delta(event); break;
      case Kind::kCallBegin:
        EXPECT_FALSE(open);
        EXPECT_EQ(event.call, static_cast<int32_t>(reply.calls.size()));
        reply.calls.push_back({event.text, event.name, "", false});
        open = true;
        break;
      case Kind::kArguments:
        EXPECT_TRUE(open);
        EXPECT_FALSE(event.text.empty());
        EXPECT_EQ(event.call, static_cast<int32_t>(reply.calls.size()) - 1);
        reply.calls.back().arguments += event.text;
        break;
      case Kind::kCallEnd:
        EXPECT_TRUE(open);
        EXPECT_EQ(event.call, static_cast<int32_t>(reply.calls.size()) - 1);
        reply.calls.back().complete = event.complete;
        open = false;
        break;
    }
  }
  const std::string& delta(const ReplyEvent& event) {
    EXPECT_FALSE(open);
    EXPECT_FALSE(event.text.empty());
    EXPECT_EQ(event.call, -1);
    return event.text;
  }
};

struct Stream {
  const Tokenizer& tokenizer;
  ChatFamily family;
  ReplyOptions options;
  std::vector<int32_t> ids;

  // Cut after the ids whose bit is set.
  Reply parse(const std::vector<bool>& cuts) const {
    ReplyParser parser(tokenizer, family, options);
    Joiner joiner;
    size_t begin = 0;
    for (size_t end = 1; end <= ids.size(); ++end) {
      if (end < ids.size() && !cuts[end]) continue;
      joiner.add(parser.push(std::span(ids).subspan(begin, end - begin)));
      begin = end;
    }
    joiner.add(parser.finish());
    EXPECT_FALSE(joiner.open);
    EXPECT_EQ(parser.calls(), static_cast<int32_t>(joiner.reply.calls.size()));
    return joiner.reply;
  }

  // All partitions of a short stream, and of a long one: whole, id by id, each single cut, each pair.
  void expect(const Reply& expected) const {
    const size_t n = ids.size();
    ASSERT_EQ(parse(std::vector<bool>(n, false)), expected);
    ASSERT_EQ(parse(std::vector<bool>(n, true)), expected);
    if (n <= 12) {
      for (uint32_t mask = 0; mask < 1u << n; mask += 2) {
        std::vector<bool> cuts(n);
        for (size_t i = 0; i < n; ++i) cuts[i] = mask >> i & 1;
        ASSERT_EQ(parse(cuts), expected) << mask;
      }
      return;
    }
    for (size_t at = 1; at < n; ++at) {
      std::vector<bool> cuts(n, false);
      cuts[at] = true;
      if (at + 1 < n) cuts[at + 1] = true;
      ASSERT_EQ(parse(cuts), expected) << at;
      cuts.flip();
      ASSERT_EQ(parse(cuts), expected) << "not " << at;
    }
  }
};

constexpr std::string_view kSection = "<|tool_calls_section_begin|>";
constexpr std::string_view kSectionEnd = "<|tool_calls_section_end|>";

std::string call(std::string_view id, std::string_view arguments) {
  return "<|tool_call_begin|>" + std::string(id) + "<|tool_call_argument_begin|>" + std::string(arguments) +
         "<|tool_call_end|>";
}

std::string section(const std::string& calls) { return std::string(kSection) + calls + std::string(kSectionEnd); }

Stream kimi(const std::string& reply, ReplyOptions options = {}) {
  if (options.tools.empty()) options.tools = {"get_weather", "search"};
  return {small_tokenizer(), ChatFamily::kKimiK25, options, *small_tokenizer().encode_with_special(reply)};
}

TEST(ReplyParser, TextAlone) {
  kimi("Hello, wörld! 你好 🎉").expect({.content = "Hello, wörld! 你好 🎉"});
  kimi("").expect({});
  kimi("\n \n").expect({.content = "\n \n"});
  kimi("\n\n  Hi<|im_end|>").expect({.content = "\n\n  Hi"});
}

TEST(ReplyParser, ReasoningByIds) {
  kimi("<think>2 and 2</think>4").expect({.reasoning = "2 and 2", .content = "4"});
  kimi("2 and 2</think>\n4", {.in_reasoning = true}).expect({.reasoning = "2 and 2", .content = "\n4"});
  kimi("cut", {.in_reasoning = true}).expect({.reasoning = "cut"});
  kimi(" <think></think>4").expect({.content = "4"});
  kimi("a<think>b</think>c<think>d").expect({.reasoning = "bd", .content = "ac"});
  kimi("4</think>5").expect({.content = "45"});  // nothing to end
  kimi("<think>a</think>b", {.split_reasoning = false}).expect({.content = "<think>a</think>b"});
}

TEST(ReplyParser, CallsWithIdsAndNames) {
  kimi("Let me look." +
       section(call("functions.get_weather:0", R"({"city": "北京"})") + call("functions.search:1", "{}")))
      .expect({.content = "Let me look.",
               .calls = {{"functions.get_weather:0", "get_weather", R"({"city": "北京"})", true},
                         {"functions.search:1", "search", "{}", true}}});
}

// Straight out of thinking: the section ends it (github.com/MoonshotAI/Kimi-K2/issues/89).
TEST(ReplyParser, ASectionEndsReasoning) {
  kimi("I need the weather." + section(call("functions.get_weather:0", "{}")), {.in_reasoning = true})
      .expect({.reasoning = "I need the weather.", .calls = {{"functions.get_weather:0", "get_weather", "{}", true}}});
}

// vLLM 28543, 31207; SGLang 20710: nothing of a section is content, nor is the white space around it.
TEST(ReplyParser, OnlyProseIsContent) {
  const Reply expected = {.calls = {{"functions.search:0", "search", "{}", true}}};
  kimi("\n\n" + section(" stray " + call("functions.search:0", "{}") + " words ") + "\n").expect(expected);
  kimi(section(call("\nfunctions.search:0\n", " \n{}\n"))).expect(expected);
  kimi(section(call("functions.search:0", R"({"a": {}} )")) + "\n done\n")
      .expect({.content = "\n done\n", .calls = {{"functions.search:0", "search", R"({"a": {}})", true}}});
}

// vLLM 38579: no limit on arguments.
TEST(ReplyParser, LongArguments) {
  const std::string arguments = R"({"text": ")" + std::string(20000, 'x') + "\"}";
  const Stream stream = kimi(section(call("functions.search:0", arguments)));
  const std::vector<bool> whole(stream.ids.size(), false), single(stream.ids.size(), true);
  const Reply expected = {.calls = {{"functions.search:0", "search", arguments, true}}};
  EXPECT_EQ(stream.parse(whole), expected);
  EXPECT_EQ(stream.parse(single), expected);
}

TEST(ReplyParser, MarkersThatAreMissing) {
  const Reply two = {
      .calls = {{"functions.search:0", "search", "{}", true}, {"functions.search:1", "search", "[]", true}}};
  // No section: the calls alone, and text after them is content again.
  kimi(call("functions.search:0", "{}") + call("functions.search:1", "[]")).expect(two);
  kimi(call("functions.search:0", "{}") + "x")
      .expect({.content = "x", .calls = {{"functions.search:0", "search", "{}", true}}});
  // No call end, no section end.
  const std::string begun = "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{}";
  kimi(std::string(kSection) + begun + call("functions.search:1", "[]") + "<|im_end|>").expect(two);
  kimi(section(begun)).expect({.calls = {{"functions.search:0", "search", "{}", true}}});
  kimi(std::string(kSection) + begun + section(call("functions.search:1", "[]"))).expect(two);
}

TEST(ReplyParser, TheReplyStopsInsideACall) {
  kimi(std::string(kSection) + "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>{\"a\": ")
      .expect({.calls = {{"functions.search:0", "search", "{\"a\":", false}}});
  kimi(std::string(kSection) + "<|tool_call_begin|>functions.search:0").expect({});
  kimi(std::string(kSection)).expect({});
}

TEST(ReplyParser, MarkersThatMakeNoSenseAreLeftOut) {
  kimi("a<|tool_call_argument_begin|>b<|tool_call_end|>c<|tool_calls_section_end|>d").expect({.content = "abcd"});
  kimi(section("<|tool_call_argument_begin|>x<|tool_call_end|><think>y</think>")).expect({});
  kimi(section(call("functions.search:0", "{<think>\"a\"<|tool_call_argument_begin|>: 1</think><|im_user|>}")))
      .expect({.calls = {{"functions.search:0", "search", "{\"a\": 1}", true}}});
  kimi(section("<|tool_call_begin|>functions.search:0<|tool_call_end|>") + "x").expect({.content = "x"});
}

TEST(ReplyParser, IdsOfManyKinds) {
  const auto name_of = [](const std::string& id, std::vector<std::string> tools = {"search", "a:b"}) {
    const Stream stream = kimi(section(call(id, "{}")), {.tools = std::move(tools)});
    const Reply reply = stream.parse(std::vector<bool>(stream.ids.size(), true));
    return reply.calls.empty() ? "" : reply.calls[0].id == id ? reply.calls[0].name : "id " + reply.calls[0].id;
  };
  EXPECT_EQ(name_of("functions.search:12"), "search");
  EXPECT_EQ(name_of("functions.files.read-all:0"), "files.read-all");  // not declared: the model's own mistake
  EXPECT_EQ(name_of("functions.a:b:7"), "a:b");
  EXPECT_EQ(name_of("search:0"), "search");
  EXPECT_EQ(name_of("functions.search"), "search");
  EXPECT_EQ(name_of("search"), "search");
  EXPECT_EQ(name_of("call_59adf5614cfe"), "");
  EXPECT_EQ(name_of("3"), "");
  EXPECT_EQ(name_of("functions.:3"), "");
  EXPECT_EQ(name_of(""), "");
  // One tool alone can be meant.
  EXPECT_EQ(name_of("3", {"search"}), "search");
  EXPECT_EQ(name_of("call_59adf5614cfe", {"search"}), "search");
  EXPECT_EQ(name_of("", {"search"}), "search");
}

TEST(ReplyParser, CountsWhatItDrops) {
  const Stream stream = kimi("<think>a b</think>" + section(call("5", "{}") + "<|tool_call_begin|>x<|tool_call_end|>" +
                                                            call("functions.search:0", "{}")));
  ReplyParser parser(stream.tokenizer, stream.family, stream.options);
  parser.push(stream.ids);
  parser.finish();
  EXPECT_EQ(parser.dropped_calls(), 2);
  EXPECT_EQ(parser.calls(), 1);
  EXPECT_EQ(parser.reasoning_tokens(), 2);
}

TEST(ReplyParser, WithoutToolsCallsAreLeftOut) {
  Stream stream = kimi("a" + section(call("functions.search:0", "{}")) + "b");
  stream.options.tools.clear();
  stream.expect({.content = "ab"});
}

TEST(ReplyParser, NoMoreCallsThanAskedFor) {
  kimi(section(call("functions.search:0", "{}") + call("functions.search:1", "{}")), {.max_calls = 1})
      .expect({.calls = {{"functions.search:0", "search", "{}", true}}});
}

TEST(ReplyParser, MarkersAsTextAreText) {
  Stream stream = kimi("");
  const std::string text = "<think>" + section(call("functions.search:0", "{}")) + "</think>";
  stream.ids = *stream.tokenizer.encode(text);
  stream.expect({.content = text});
}

TEST(ReplyParser, ACharacterThatAMarkerCutsOff) {
  Stream stream = kimi("");
  const std::vector<int32_t> party = *stream.tokenizer.encode("🎉");
  ASSERT_GT(party.size(), 1u);
  stream.ids = {party[0], *stream.tokenizer.special_id("<think>"), party[0], *stream.tokenizer.special_id("</think>")};
  stream.ids.insert(stream.ids.end(), party.begin(), party.end());
  stream.expect({.reasoning = "\ufffd", .content = "\ufffd🎉"});
}

Stream text_think(const std::string& reply) {
  static const Tokenizer tokenizer = tokenizer_with({"<|im_start|>", "<|im_end|>"});
  return {tokenizer, ChatFamily::kChatMl, {}, *tokenizer.encode_with_special(reply)};
}

TEST(ReplyParser, ReasoningByText) {
  text_think("<think>2 and 2</think>4<|im_end|>").expect({.reasoning = "2 and 2", .content = "4"});
  text_think("\n<think>\na < b </th</think>\n\n4").expect({.reasoning = "\na < b </th", .content = "\n\n4"});
  text_think("<think>never ends </thin").expect({.reasoning = "never ends </thin"});
  text_think("<think></think>").expect({});
  text_think("<thin").expect({.content = "<thin"});
  text_think("<thing> <think>x</think>").expect({.content = "<thing> <think>x</think>"});
  text_think(" a<think>x</think>").expect({.content = " a<think>x</think>"});
}

Stream qwen(const std::string& reply, std::vector<std::string> tools = {"search"}) {
  static const Tokenizer tokenizer =
      tokenizer_with({"<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"});
  return {tokenizer, ChatFamily::kQwen3, {.tools = std::move(tools)}, *tokenizer.encode_with_special(reply)};
}

TEST(ReplyParser, QwensCalls) {
  const auto call = [](const std::string& json) { return "<tool_call>\n" + json + "\n</tool_call>"; };
  qwen("<think>\nhm\n</think>\n\n" + call(R"({"name": "search", "arguments": {"q":"é", "n":1.50}})") + "\n" +
       call(R"({"name": "other", "arguments": "{ }"})") + "<|im_end|>")
      .expect({.reasoning = "\nhm\n",
               .calls = {{"", "search", R"({"q": "é", "n": 1.5})", true}, {"", "other", "{ }", true}}});
  for (const char* wrong : {"{\"name\": \"search\"", "[]", R"({"name": "", "arguments": {}})", R"({"arguments": {}})",
                            R"({"name": "search"})", ""})
    qwen("a" + call(wrong)).expect({.content = "a"});
  qwen("a<tool_call>{\"name\": \"search\", \"arguments\": {}}").expect({.content = "a"});
  qwen("a" + call(R"({"name": "search", "arguments": {}})"), {}).expect({.content = "a"});
}

// Any ids in any order: the same for every cut, deltas well-formed (Joiner), and no marker seen by the client.
RC_GTEST_PROP(ReplyParserProperty, AnyIdsInAnyPartition, ()) {
  static const std::vector<std::string> kPieces = {"<think>",
                                                   "</think>",
                                                   "<|tool_calls_section_begin|>",
                                                   "<|tool_calls_section_end|>",
                                                   "<|tool_call_begin|>",
                                                   "<|tool_call_argument_begin|>",
                                                   "<|tool_call_end|>",
                                                   "<|im_end|>",
                                                   "functions.search:0",
                                                   "{\"a\": 1}",
                                                   "3",
                                                   " ",
                                                   "\n\n",
                                                   "text",
                                                   "🎉",
                                                   "</thi"};
  Stream stream = kimi("");
  for (const size_t piece : *rc::gen::container<std::vector<size_t>>(rc::gen::inRange<size_t>(0, kPieces.size()))) {
    const std::vector<int32_t> ids = *stream.tokenizer.encode_with_special(kPieces[piece]);
    const size_t keep = *rc::gen::inRange<size_t>(0, 8) ? ids.size() : 1;
    stream.ids.insert(stream.ids.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(keep));
  }
  stream.options.in_reasoning = *rc::gen::arbitrary<bool>();
  stream.options.max_calls = *rc::gen::inRange(0, 5);
  const size_t n = stream.ids.size();
  const Reply whole = stream.parse(std::vector<bool>(n, false));
  RC_ASSERT(stream.parse(std::vector<bool>(n, true)) == whole);
  RC_ASSERT(stream.parse(*rc::gen::container<std::vector<bool>>(n, rc::gen::arbitrary<bool>())) == whole);

  std::string visible = whole.reasoning + "\n" + whole.content;
  for (const Reply::Call& call : whole.calls) {
    visible += "\n" + call.id + "\n" + call.arguments;
    RC_ASSERT(!call.name.empty());
  }
  for (size_t i = 0; i < 8; ++i) RC_ASSERT(visible.find(kPieces[i]) == std::string::npos);
}

}  // namespace
}  // namespace ddtree
