#include "base/utf8.h"

#include <gtest/gtest.h>

#include "fixture.h"

namespace ddtree {
namespace {

// As a decoder with errors="replace" sees the whole input: what is still held at its end is one U+FFFD.
std::string repair_all(std::string_view bytes) {
  std::string out;
  if (repair_utf8(bytes, out) < bytes.size()) out += kReplacementCharacter;
  return out;
}

TEST(Utf8, RepairsAsPythonDoes) {
  FixtureReader fixture("utf8.bin");
  for (uint64_t count = fixture.number(); count > 0; --count) {
    const std::string bytes = fixture.string();
    const std::string expected = fixture.string();
    EXPECT_EQ(repair_all(bytes), expected) << escaped(bytes);
    EXPECT_EQ(find_invalid_utf8(bytes).has_value(), bytes != expected) << escaped(bytes);
  }

  // Every string of one to four of the bytes at the borders of UTF-8's ranges.
  constexpr std::string_view kBytes(
      "\x00\x41\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xed\xef\xf0\xf1\xf4\xf5\xff", 22);
  IdHash hash;
  for (size_t length = 1; length <= 4; ++length) {
    size_t combinations = 1;
    for (size_t i = 0; i < length; ++i) combinations *= kBytes.size();
    for (size_t n = 0; n < combinations; ++n) {
      std::string bytes(length, '\0');
      for (size_t i = length, rest = n; i-- > 0; rest /= kBytes.size()) bytes[i] = kBytes[rest % kBytes.size()];
      const std::string repaired = repair_all(bytes);
      ASSERT_EQ(find_invalid_utf8(bytes).has_value(), bytes != repaired) << escaped(bytes);
      for (const char c : repaired) hash.add(static_cast<uint8_t>(c));
      hash.add(-1);
    }
  }
  EXPECT_EQ(hash.value(), fixture.hash());
  EXPECT_TRUE(fixture.at_end());
}

TEST(Utf8, ReadsCodePoints) {
  const auto read = [](std::string_view bytes) { return read_utf8(bytes).code_point; };
  EXPECT_EQ(read("A"), 0x41);
  EXPECT_EQ(read("\xc3\xa9"), 0xe9);
  EXPECT_EQ(read("\xe4\xb8\xad"), 0x4e2d);
  EXPECT_EQ(read("\xf0\xa0\xae\xb7"), 0x20bb7);
  EXPECT_EQ(read("\xf4\x8f\xbf\xbf"), 0x10ffff);
}

TEST(Utf8, FindsTheFirstInvalidByte) {
  EXPECT_EQ(find_invalid_utf8(""), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("twelve bytes, then \xe4\xb8\xad"), std::nullopt);
  EXPECT_EQ(find_invalid_utf8("0123456789\xff"), 10u);
  EXPECT_EQ(find_invalid_utf8("01234567\xe4\xb8"), 8u);      // cut off
  EXPECT_EQ(find_invalid_utf8("ab\xed\xa0\x80 c"), 2u);      // a surrogate
  EXPECT_EQ(find_invalid_utf8("ab\xc3\xa9\xc0\xaf c"), 4u);  // overlong
}

// A truncated character is left for more bytes; it is at most three long.
TEST(Utf8, LeavesATruncatedCharacter) {
  const auto left = [](std::string_view bytes) {
    std::string out;
    return bytes.size() - repair_utf8(bytes, out);
  };
  EXPECT_EQ(left("a\xf0"), 1u);
  EXPECT_EQ(left("a\xf0\x9f"), 2u);
  EXPECT_EQ(left("a\xf0\x9f\x98"), 3u);
  EXPECT_EQ(left("a\xf0\x9f\x98\x80"), 0u);
  EXPECT_EQ(left("a\xf0\x80"), 0u);  // can't become a character
  EXPECT_EQ(left("a\xc1"), 0u);
}

}  // namespace
}  // namespace ddtree
