#include "text/stop_strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "fixture.h"
#include "text/detokenizer.h"

namespace ddtree {
namespace {

using testing::HasSubstr;

struct Outcome {
  std::string text;
  std::optional<StopHit> hit;
};

Outcome run(const std::vector<std::string>& stop_texts, const std::vector<std::string>& tokens,
            const std::string& rest = "") {
  const StopStrings stops = *StopStrings::create(stop_texts);
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& token : tokens) outcome.text += matcher.push(token);
  outcome.text += matcher.finish(rest);
  outcome.hit = matcher.hit();
  return outcome;
}

TEST(StopStrings, CutsTheTextBeforeTheStop) {
  const Outcome outcome = run({"STOP"}, {"go ", "on S", "TO", "P and", " more"});
  EXPECT_EQ(outcome.text, "go on ");
  ASSERT_TRUE(outcome.hit);
  EXPECT_EQ(outcome.hit->stop, 0);
  EXPECT_EQ(outcome.hit->token, 3);
  EXPECT_EQ(outcome.hit->text_length, 6);
}

TEST(StopStrings, EarliestInTheTextWinsNotInTheList) {
  const Outcome outcome = run({"a", "is", ","}, {"This, a"});
  EXPECT_EQ(outcome.text, "Th");
  EXPECT_EQ(outcome.hit->stop, 1);
  EXPECT_EQ(run({"long one", "on"}, {"a long one"}).text, "a l");  // "on" is complete first
  EXPECT_EQ(run({"b", "ab"}, {"xab"}).text, "x");                  // both are at once: the longer
  EXPECT_EQ(run({"\n", "\n\n"}, {"first\n\nsecond"}).text, "first");
}

TEST(StopStrings, ReleasesWhatCanNoLongerBeAStop) {
  const StopStrings stops = *StopStrings::create({"abac", "\n\n"});
  StopMatcher matcher(stops);
  EXPECT_EQ(matcher.push("xa"), "x");
  EXPECT_EQ(matcher.push("ba"), "");
  EXPECT_EQ(matcher.push("bab"), "abab");  // "ab" may still begin it: the text so far is xababab
  EXPECT_EQ(matcher.push("z\n"), "abz");
  EXPECT_EQ(matcher.push("y"), "\ny");
  EXPECT_EQ(matcher.push("\n"), "");
  EXPECT_EQ(matcher.finish(), "\n");
  EXPECT_FALSE(matcher.hit());
}

// Where a stop fails, it may have begun again before that.
TEST(StopStrings, BeginsAgainInsideItself) {
  EXPECT_EQ(run({"abac"}, {"x", "ababac", "y"}).text, "xab");
  EXPECT_EQ(run({"aab"}, {"a", "a", "a", "b"}).text, "a");
  EXPECT_EQ(run({"\n\n##"}, {"\n\n", "\n", "##"}).text, "\n");
}

TEST(StopStrings, NothingComesAfterAHit) {
  const StopStrings stops = *StopStrings::create({"."});
  StopMatcher matcher(stops);
  EXPECT_EQ(matcher.push("a.b"), "a");
  EXPECT_EQ(matcher.push("c.d"), "");
  EXPECT_EQ(matcher.finish("e"), "");
  EXPECT_EQ(matcher.hit()->token, 0);
  EXPECT_EQ(matcher.hit()->text_length, 1);
}

TEST(StopStrings, TheRestCountsToTheLastToken) {
  const Outcome outcome = run({"x\ufffd"}, {"a", "x", ""}, "\ufffd");
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.hit->token, 2);
}

TEST(StopStrings, NoStopsHoldNothingBack) {
  const StopStrings stops = *StopStrings::create({});
  EXPECT_TRUE(stops.empty());
  StopMatcher matcher(stops);
  EXPECT_EQ(matcher.push("abc"), "abc");
}

// A stop that ends inside a character's bytes over several tokens, with the pieces that a detokenizer makes of them.
TEST(StopStrings, OverTokensWithPartsOfCharacters) {
  const StopStrings stops = *StopStrings::create({"🎉!"});
  StopMatcher matcher(stops);
  Detokenizer detokenizer(demo_tokenizer());
  std::string text;
  for (const int32_t id : std::vector<int32_t>{'a', 0xf0, 0x9f, 0x8e, 0x8a, 0xf0, 0x9f, 0x8e, 0x89, '!', 'b'})
    text += matcher.push(detokenizer.push(id));
  EXPECT_EQ(text, "a🎊");
  EXPECT_EQ(matcher.hit()->token, 9);
  EXPECT_EQ(matcher.hit()->text_length, 5);
}

// The rule by brute force, for the text as a whole.
std::optional<StopHit> first_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<StopHit> hit;
    for (size_t i = 0; i < stops.size(); ++i) {
      const int64_t begin = static_cast<int64_t>(end) - static_cast<int64_t>(stops[i].size());
      if (begin < 0 || text.compare(begin, stops[i].size(), stops[i]) != 0) continue;
      if (!hit || begin < hit->text_length)
        hit = StopHit{static_cast<int32_t>(i), static_cast<int64_t>(end) - 1, begin};
    }
    if (hit) return hit;  // with the last byte in place of the token
  }
  return std::nullopt;
}

// Bytes at the end of `text` that a stop may begin with.
size_t open_bytes(const std::string& text, const std::vector<std::string>& stops) {
  size_t open = 0;
  for (const std::string& stop : stops)
    for (size_t n = 1; n < stop.size(); ++n)
      if (n <= text.size() && text.ends_with(stop.substr(0, n))) open = std::max(open, n);
  return open;
}

// However a text is cut into tokens, the reply ends at the same place, and no more is held back than must be.
void check_against_brute_force(const std::vector<std::string>& stop_texts, const std::vector<std::string>& tokens) {
  const StopStrings stops = *StopStrings::create(stop_texts);
  StopMatcher matcher(stops);
  std::string text, released;
  for (size_t i = 0; i < tokens.size(); ++i) {
    text += tokens[i];
    released += matcher.push(tokens[i]);
    RC_ASSERT(!matcher.hit() == !first_stop(text, stop_texts));
    if (!matcher.hit()) RC_ASSERT(released == text.substr(0, text.size() - open_bytes(text, stop_texts)));
  }
  released += matcher.finish();
  const std::optional<StopHit> expected = first_stop(text, stop_texts);
  RC_ASSERT(released == text.substr(0, expected ? expected->text_length : std::string::npos));
  if (!expected) return;
  RC_ASSERT(matcher.hit()->stop == expected->stop);
  RC_ASSERT(matcher.hit()->text_length == expected->text_length);
  int64_t end = 0, holder = 0;  // the token that has the last byte of the stop
  while ((end += static_cast<int64_t>(tokens[holder].size())) <= expected->token) ++holder;
  RC_ASSERT(matcher.hit()->token == holder);
}

RC_GTEST_PROP(StopStrings, AnyTokensGiveTheSameCut, ()) {
  const auto character = rc::gen::element<std::string>("a", "a", "b", "é", "中");
  const auto word = rc::gen::exec([character] {
    std::string out;
    for (int n = *rc::gen::element(1, 2, 3, 3, 4, 5, 6); n > 0; --n) out += *character;
    return out;
  });
  const auto token = rc::gen::oneOf(rc::gen::just(std::string()), character, word);
  for (int round = 0; round < 20; ++round) {
    const auto stop_texts = *rc::gen::container<std::vector<std::string>>(*rc::gen::element(0, 1, 1, 1, 2, 3), word);
    check_against_brute_force(stop_texts, *rc::gen::container<std::vector<std::string>>(token));
  }
}

TEST(StopStrings, Limits) {
  const auto message = [](const std::vector<std::string>& stops) {
    const auto result = StopStrings::create(stops);
    EXPECT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, Code::kInvalidArgument);
    return result.error().message;
  };
  EXPECT_TRUE(StopStrings::create(std::vector<std::string>(16, std::string(1024, 'a'))).ok());
  EXPECT_THAT(message(std::vector<std::string>(17, "a")), HasSubstr("stop: 17 strings; at most 16 are allowed"));
  EXPECT_THAT(message({"a", std::string(1025, 'a')}), HasSubstr("stop[1]: 1025 bytes; at most 1024 are allowed"));
  EXPECT_THAT(message({""}), HasSubstr("stop[0]: an empty string"));
  EXPECT_THAT(message({"a\xff"}), HasSubstr("stop[0]: not valid UTF-8 at byte 1"));
  const std::string longest(StopStrings::kMaxBytes, 'a');
  EXPECT_EQ(run({longest}, {"b", longest.substr(1), "b", longest, "c"}).text, "b" + longest.substr(1).append("b"));
}

}  // namespace
}  // namespace ddtree
