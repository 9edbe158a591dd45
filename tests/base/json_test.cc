#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/json_writer.h"
#include "base/utf8.h"

namespace ddtree {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JsonDocument parse(std::string_view text) {
  Result<JsonDocument> document = parse_json(text, "x.json");
  EXPECT_TRUE(document.ok()) << document.error().message;
  return *std::move(document);
}

Error parse_error(std::string_view text, JsonLimits limits = {}) {
  const Result<JsonDocument> document = parse_json(text, "x.json", limits);
  EXPECT_FALSE(document.ok()) << text;
  return document.ok() ? Error{} : document.error();
}

TEST(Json, ReadsEveryKind) {
  const JsonDocument document =
      parse(R"({"i": -7, "d": 2.5, "t": true, "n": null, "s": "a\u00e9\n", "a": [1, [2], {}], "o": {"k": 1}})");
  const JsonValue root = document.root();
  EXPECT_EQ(*root.get_int("i"), -7);
  EXPECT_EQ(*root.get_double("d"), 2.5);
  EXPECT_EQ(*root.get_double("i"), -7.0);
  EXPECT_EQ(*root.get_bool("t"), true);
  EXPECT_EQ(*root.get_string("s"), "a\xC3\xA9\n");
  EXPECT_TRUE(root.find("n")->is_null());
  EXPECT_EQ(*root.get("o")->get_int("k"), 1);
  EXPECT_EQ(root.get("a")->elements()->size(), 3u);
}

TEST(Json, IteratesInTheOrderOfTheText) {
  const JsonDocument document = parse(R"({"z": {"deep": [1, 2, {"x": 3}]}, "a": [10, 20], "m": 5})");
  std::vector<std::string> keys;
  const JsonMembers members = *document.root().members();
  for (const auto [key, value] : members) keys.emplace_back(key);
  EXPECT_THAT(keys, ElementsAre("z", "a", "m"));
  std::vector<int64_t> numbers;
  const JsonElements elements = *document.root().get("a")->elements();
  for (const JsonValue element : elements) numbers.push_back(*element.as_int());
  EXPECT_THAT(numbers, ElementsAre(10, 20));
  EXPECT_EQ(*document.root().get_int("m"), 5);
}

TEST(Json, TellsAbsentFromNull) {
  const JsonDocument document = parse(R"({"null": null, "one": 1})");
  const JsonValue root = document.root();
  EXPECT_FALSE(root.find("absent").has_value());
  EXPECT_TRUE(root.find("null").has_value());
  EXPECT_FALSE(root.find_int("absent")->has_value());
  EXPECT_FALSE(root.find_int("null")->has_value());
  EXPECT_EQ(**root.find_int("one"), 1);
  EXPECT_EQ(root.get_int("absent").error().message, "x.json: absent is missing");
  EXPECT_EQ(root.get_int("null").error().message, "x.json: null is null");
}

TEST(Json, ErrorsNameThePathTheValueAndTheLimit) {
  const JsonDocument document = parse(R"({"a": {"b": [1, {"c": 99}]}, "s": "text"})");
  const JsonElements list = *document.root().get("a")->get("b")->elements();
  JsonElements::Iterator second = list.begin();
  ++second;
  const Error limit = (*second).get_int("c", 1, 8).error();
  EXPECT_EQ(limit.code, Code::kInvalidArgument);
  EXPECT_EQ(limit.message, "x.json: a.b[1].c: is 99, must be an integer from 1 to 8");
  EXPECT_EQ((*second).get_int("d").error().message, "x.json: a.b[1].d is missing");
  EXPECT_EQ(document.root().get_int("s").error().message, "x.json: s: is \"text\", must be an integer");
  EXPECT_EQ(document.root().get("a")->get_string("b").error().message,
            "x.json: a.b: is an array of 2, must be a string");
}

TEST(Json, RefusesWrongTypes) {
  const JsonDocument document = parse(R"({"i": 1, "d": 4096.0, "b": true, "s": "1", "a": [], "o": {}})");
  const JsonValue root = document.root();
  for (const char* key : {"d", "b", "s", "a", "o"}) EXPECT_FALSE(root.get_int(key).ok()) << key;
  for (const char* key : {"b", "s", "a", "o"}) EXPECT_FALSE(root.get_double(key).ok()) << key;
  for (const char* key : {"i", "d", "s", "a", "o"}) EXPECT_FALSE(root.get_bool(key).ok()) << key;
  for (const char* key : {"i", "d", "b", "a", "o"}) EXPECT_FALSE(root.get_string(key).ok()) << key;
  EXPECT_FALSE(root.get("i")->members().ok());
  EXPECT_FALSE(root.get("i")->elements().ok());
  EXPECT_FALSE(root.get("i")->get("x").ok());
  EXPECT_FALSE(root.get("i")->find("x").has_value());
}

TEST(Json, IntegersAreExactToTheirLimits) {
  const JsonDocument document =
      parse("[9223372036854775807, -9223372036854775808, 9223372036854775808, 18446744073709551615, 1e30, 1e999]");
  std::vector<JsonValue> v;
  const JsonElements elements = *document.root().elements();
  for (const JsonValue e : elements) v.push_back(e);
  EXPECT_EQ(*v[0].as_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(*v[1].as_int(), std::numeric_limits<int64_t>::min());
  EXPECT_THAT(v[2].as_int().error().message, HasSubstr("is 9223372036854775808"));
  EXPECT_THAT(v[3].as_int().error().message, HasSubstr("is 18446744073709551615"));
  EXPECT_FALSE(v[4].as_int().ok());
  EXPECT_EQ(*v[4].as_double(), 1e30);
  EXPECT_FALSE(v[5].as_double().ok());
  EXPECT_TRUE(v[0].is_integer() && v[3].is_integer());
  EXPECT_FALSE(v[4].is_integer());
}

// The constants are the correctly rounded neighbours, written in hexadecimal.
TEST(Json, DoublesAreCorrectlyRounded) {
  const JsonDocument document = parse("[0.1, 1e23, 2.2250738585072011e-308, 8.5e-05, 0.707]");
  std::vector<double> v;
  const JsonElements elements = *document.root().elements();
  for (const JsonValue e : elements) v.push_back(*e.as_double());
  EXPECT_THAT(v, ElementsAre(0x1.999999999999ap-4, 0x1.52d02c7e14af6p+76, 0x0.fffffffffffffp-1022, 8.5e-05, 0.707));
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"",      " ",   "{",     "[1,", "[1,]",     "{\"a\":1,}",       "{\"a\"}",
                           "[1] 2", "NaN", "[NaN]", "nul", "\"\\x\"",  "\"unterminated",   "'a'",
                           "01",    "+1",  ".5",    "1.",  "\"\xff\"", "\"\xed\xa0\x80\"", "// c\n1"})
    EXPECT_EQ(parse_error(text).code, Code::kCorrupt) << text;
  EXPECT_THAT(parse_error("{\"eps\": NaN}").message, HasSubstr("x.json: not valid JSON at byte 8, near \"NaN}\""));
}

TEST(Json, RefusesDuplicateKeysAtAnyDepthAndSize) {
  EXPECT_THAT(parse_error(R"({"a": 1, "b": 2, "a": 3})").message, HasSubstr("key \"a\" appears twice"));
  EXPECT_THAT(parse_error(R"([{"x": {"q": 1, "q": 1}}])").message, HasSubstr("key \"q\" appears twice"));
  EXPECT_THAT(parse_error(R"({"a": 1, "\u0061": 2})").message, HasSubstr("key \"a\" appears twice"));
  std::string many = "{";
  for (int i = 0; i < 1000; ++i) many += "\"k" + std::to_string(i) + "\": {\"k0\": 1}, ";
  EXPECT_TRUE(parse_json(many + "\"last\": 1}", "x.json").ok());
  EXPECT_THAT(parse_error(many + "\"k500\": 1}").message, HasSubstr("key \"k500\" appears twice"));
  EXPECT_TRUE(parse_json(R"({"": 1, "a": {"": 2}})", "x.json").ok());
  EXPECT_THAT(parse_error(R"({"": 1, "": 2})").message, HasSubstr("key \"\" appears twice"));
}

TEST(Json, KeepsItsLimits) {
  const std::string deep(40, '[');
  EXPECT_THAT(parse_error(deep + std::string(40, ']'), {.max_depth = 39}).message, HasSubstr("deeper than 39"));
  EXPECT_TRUE(parse_json(deep + std::string(40, ']'), "x.json", {.max_depth = 40}).ok());
  EXPECT_EQ(parse_error(std::string(1 << 20, '[')).code, Code::kCorrupt);
  EXPECT_EQ(parse_error("[1, 2]", {.max_bytes = 5}).code, Code::kExhausted);
}

TEST(Json, MovingADocumentKeepsItsValues) {
  JsonDocument first = parse(R"({"a": "some text"})");
  const JsonValue root = first.root();
  const JsonDocument second = std::move(first);
  EXPECT_EQ(*root.get_string("a"), "some text");
}

RC_GTEST_PROP(JsonProperty, ParsingNeverCrashes, (std::string text)) {
  const Result<JsonDocument> document = parse_json(text, "x");
  if (document.ok()) document->root().text();
}

RC_GTEST_PROP(JsonProperty, StringsAndNumbersRoundTrip, (const std::vector<int64_t>& ints)) {
  const double number = *rc::gen::arbitrary<double>();
  std::string text;
  repair_utf8(*rc::gen::arbitrary<std::string>(), text);
  JsonWriter out;
  out.begin_object().member(text, text).key(text + "n").value(number).key(text + "a").begin_array();
  for (const int64_t i : ints) out.value(i);
  out.end_array().end_object();
  const Result<JsonDocument> document = parse_json(std::move(out).text(), "x");
  RC_ASSERT(document.ok());
  RC_ASSERT(std::string(*document->root().get_string(text)) == text);
  if (std::isfinite(number)) RC_ASSERT(*document->root().get_double(text + "n") == number);
  const JsonElements elements = *document->root().get(text + "a")->elements();
  size_t i = 0;
  for (const JsonValue element : elements) RC_ASSERT(*element.as_int() == ints[i++]);
  RC_ASSERT(i == ints.size());
}

}  // namespace
}  // namespace ddtree
