#include "text/splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fixture.h"

namespace ddtree {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const Splitter& kimi() {
  static const Splitter splitter = *Splitter::create(kKimiPattern);
  return splitter;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> pieces;
  const Status status = kimi().split(text, pieces);
  EXPECT_TRUE(status.ok()) << status.error().message;
  return pieces;
}

// Computed with Python's regex module (V1) and, independently, Node's /v flag.
TEST(Splitter, KimiPieces) {
  EXPECT_THAT(split("hello世界 world"), ElementsAre("hello", "世界", " world"));
  EXPECT_THAT(split("Hello, World! it's HTTPServer's iPhone15Pro"),
              ElementsAre("Hello", ",", " World", "!", " it's", " HTTPServer's", " i", "Phone", "15", "Pro"));
  EXPECT_THAT(split("12345678 ٣٤٥ ⅷ〇一二三 3.14"),
              ElementsAre("123", "456", "78", " ", "٣٤٥", " ", "ⅷ〇", "一二三", " ", "3", ".", "14"));
  EXPECT_THAT(split("日本語のテキスト々ヶ・カタカナー"),
              ElementsAre("日本語", "のテキスト", "々", "ヶ", "・カタカナー"));
  EXPECT_THAT(split("नमस्ते दुनिया"), ElementsAre("नमस्ते", " दुनिया"));
  EXPECT_THAT(split("e\u0301cole café"), ElementsAre("e\u0301cole", " café"));
  EXPECT_THAT(split("I'LL can't WE'RE ſ'ſ"), ElementsAre("I'LL", " can't", " WE'RE", " ſ'ſ"));
  EXPECT_THAT(split("(你好)「世界」，。"), ElementsAre("(", "你好", ")「", "世界", "」，。"));
  EXPECT_THAT(split("AbcDEF ǅungla ʰa"), ElementsAre("Abc", "DEF", " ǅungla", " ʰa"));
  EXPECT_THAT(split("foo_bar(baz);\n\n\treturn x;"),
              ElementsAre("foo", "_bar", "(baz", ");\n\n", "\treturn", " x", ";"));
  EXPECT_THAT(split("  leading\n\n  two\tTabs \r\n end  "),
              ElementsAre(" ", " leading", "\n\n", " ", " two", "\tTabs", " \r\n", " end", "  "));
  EXPECT_THAT(split("<|im_end|>"), ElementsAre("<|", "im", "_end", "|>"));
  EXPECT_THAT(split(""), ElementsAre());
}

// Where Kimi's pattern differs from o200k_base's, of which it is an edit.
TEST(Splitter, KimiIsNotO200k) {
  EXPECT_THAT(split("}\n/// text"), ElementsAre("}\n", "///", " text"));  // no slash after punctuation and newlines
  EXPECT_THAT(split("中文's"), ElementsAre("中文", "'s"));                // no contraction after Han
  EXPECT_THAT(split("a中b"), ElementsAre("a", "中", "b"));                // no Han among letters
  EXPECT_THAT(split("123〇4"), ElementsAre("123", "〇", "4"));            // Han numerals, alone …
  EXPECT_THAT(split("12〇4"), ElementsAre("12〇", "4"));                  // … and among digits
  EXPECT_THAT(split("𠮷野家"), ElementsAre("𠮷野家"));                    // Han outside the basic plane
}

// Each character that Unicode 14 assigns, in all kinds of company; pieces by Python's regex module.
TEST(Splitter, EveryCharacterAsPythonRegex) {
  FixtureReader fixture("codepoints.bin");
  int64_t characters = 0;
  for (uint64_t ranges = fixture.number(); ranges > 0; --ranges) {
    const uint32_t first = static_cast<uint32_t>(fixture.number());
    const uint32_t length = static_cast<uint32_t>(fixture.number());
    IdHash hash;
    for (uint32_t point = first; point < first + length; ++point) {
      std::string c;
      if (point < 0x80) {
        c = {static_cast<char>(point)};
      } else if (point < 0x800) {
        c = {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
      } else if (point < 0x10000) {
        c = {static_cast<char>(0xe0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3f)),
             static_cast<char>(0x80 | (point & 0x3f))};
      } else {
        c = {static_cast<char>(0xf0 | point >> 18), static_cast<char>(0x80 | (point >> 12 & 0x3f)),
             static_cast<char>(0x80 | (point >> 6 & 0x3f)), static_cast<char>(0x80 | (point & 0x3f))};
      }
      const std::string probe = "x" + c + c + "B1" + c + " " + c + "'s\n" + c + " " + c + "中" + c;
      int32_t end = 0;
      for (const std::string_view piece : split(probe)) hash.add(end += static_cast<int32_t>(piece.size()));
      ++characters;
    }
    EXPECT_EQ(hash.value(), fixture.hash()) << "between U+" << std::hex << first << " and U+" << first + length - 1;
  }
  EXPECT_TRUE(fixture.at_end());
  EXPECT_GT(characters, 140000);
}

TEST(Splitter, RefusesAPatternThatItDoesNotKnow) {
  const std::string llama = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|\s+)";
  const auto splitter = Splitter::create(llama);
  ASSERT_FALSE(splitter.ok());
  EXPECT_EQ(splitter.error().code, Code::kUnsupported);
  EXPECT_THAT(splitter.error().message, HasSubstr(llama));
}

// A piece that needs more work than is allowed is an error, not a crash, a hang or another split.
TEST(Splitter, WorkIsLimited) {
  const std::string letters(5000, 'A');
  std::vector<std::string_view> pieces;
  const Splitter little_stack = *Splitter::create(kKimiPattern, {.stack_entries = 100});
  const Status over_stack = little_stack.split(letters, pieces);
  ASSERT_FALSE(over_stack.ok());
  EXPECT_EQ(over_stack.error().code, Code::kExhausted);
  EXPECT_THAT(over_stack.error().message, HasSubstr("at byte 0: match-stack limit over"));

  const Splitter few_retries = *Splitter::create(kKimiPattern, {.retries = 100});
  const Status over_retries = few_retries.split("ok " + letters, pieces);
  ASSERT_FALSE(over_retries.ok());
  EXPECT_EQ(over_retries.error().code, Code::kExhausted);
  EXPECT_THAT(over_retries.error().message, HasSubstr("at byte 2: retry-limit-in-match over"));
}

std::vector<size_t> chunk_sizes(std::string_view text) {
  std::vector<size_t> sizes;
  for (const std::string_view chunk : cut_long_text(text)) sizes.push_back(chunk.size());
  return sizes;
}

TEST(Splitter, CutsLongRuns) {
  EXPECT_THAT(chunk_sizes(""), ElementsAre());
  EXPECT_THAT(chunk_sizes("a b"), ElementsAre(3));
  EXPECT_THAT(chunk_sizes(std::string(25000, 'a')), ElementsAre(25000));
  EXPECT_THAT(chunk_sizes(std::string(25001, 'a')), ElementsAre(25000, 1));
  EXPECT_THAT(chunk_sizes("x " + std::string(60000, 'a') + " y"), ElementsAre(25002, 25000, 10002));
  EXPECT_THAT(chunk_sizes(std::string(25001, ' ') + "a"), ElementsAre(25000, 2));
  EXPECT_THAT(chunk_sizes(std::string(20000, 'a') + std::string(20000, '\n')), ElementsAre(40000));
  // Python counts U+001C as white space, though the pattern does not.
  EXPECT_THAT(chunk_sizes(std::string(20000, ' ') + std::string(20000, '\x1c')), ElementsAre(25000, 15000));
  EXPECT_THAT(chunk_sizes(std::string(20000, '!') + std::string(20000, '\x1b')), ElementsAre(25000, 15000));
}

TEST(Splitter, CutsEvery400000Characters) {
  std::string text;  // of two-byte characters, so that characters and bytes differ
  for (int i = 0; i < 450000; ++i) text += i % 5 == 4 ? " " : "é";
  EXPECT_THAT(chunk_sizes(text), ElementsAre(720000, 90000));
  // A run is counted from the start of its chunk: 376,000 characters, then 44,000 letters.
  const std::string tail = text.substr(0, 676800) + std::string(24000 + 20000, 'a');
  EXPECT_THAT(chunk_sizes(tail), ElementsAre(676800 + 24000, 20000));
}

}  // namespace
}  // namespace ddtree
