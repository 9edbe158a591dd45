#include "text/detokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "base/utf8.h"
#include "fixture.h"
#include "vocabulary.h"

namespace ddtree {
namespace {

using testing::ElementsAre;

std::vector<std::string> pieces(Detokenizer detokenizer, const std::vector<int32_t>& ids) {
  std::vector<std::string> out;
  for (const int32_t id : ids) out.push_back(detokenizer.push(id));
  out.push_back(detokenizer.finish());
  return out;
}

// In the demo vocabulary, the id of a byte is the byte.
TEST(Detokenizer, HoldsBackUntilACharacterIsWhole) {
  const Detokenizer detokenizer(demo_tokenizer());
  EXPECT_THAT(pieces(detokenizer, {'a', 0xf0, 0x9f, 0x8e, 0x89, 'b'}), ElementsAre("a", "", "", "", "🎉", "b", ""));
  EXPECT_THAT(pieces(detokenizer, {0xe4, 0xb8, 0xad}), ElementsAre("", "", "中", ""));
  EXPECT_THAT(pieces(detokenizer, {}), ElementsAre(""));
}

TEST(Detokenizer, ReplacesWhatIsNotUtf8) {
  const Detokenizer detokenizer(demo_tokenizer());
  EXPECT_THAT(pieces(detokenizer, {'a', 0xf0, 0x9f, 'b'}), ElementsAre("a", "", "", "\ufffdb", ""));
  EXPECT_THAT(pieces(detokenizer, {0xff, 0x80, 0xc3}), ElementsAre("\ufffd", "\ufffd", "", "\ufffd"));
  EXPECT_THAT(pieces(detokenizer, {0xe4, 0xe4, 0xb8}), ElementsAre("", "\ufffd", "", "\ufffd"));
}

TEST(Detokenizer, StartsAfreshAfterFinish) {
  Detokenizer detokenizer(demo_tokenizer());
  EXPECT_EQ(detokenizer.push(0xe4), "");
  EXPECT_EQ(detokenizer.held_bytes(), 1u);
  EXPECT_EQ(detokenizer.finish(), "\ufffd");
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(detokenizer.push('a'), "a");
}

TEST(Detokenizer, SkipsSpecialTokens) {
  const int32_t end = *demo_tokenizer().special_id("<|im_end|>");
  EXPECT_THAT(pieces(Detokenizer(demo_tokenizer()), {0xc3, end, 0xa9}),
              ElementsAre("", "\ufffd<|im_end|>", "\ufffd", ""));
  EXPECT_THAT(pieces(Detokenizer(demo_tokenizer(), true), {0xc3, end, 0xa9}), ElementsAre("", "", "é", ""));
}

TEST(Detokenizer, IdsWithoutATokenAddNothing) {
  EXPECT_THAT(pieces(Detokenizer(demo_tokenizer()), {-1, 'a', 4096, INT32_MAX}), ElementsAre("", "a", "", "", ""));
}

// Byte strings whose text Python tells, cut into tokens in every way there is.
TEST(Detokenizer, EverySplitGivesPythonsText) {
  FixtureReader fixture("utf8.bin");
  int splits = 0;
  for (uint64_t count = fixture.number(); count > 0; --count) {
    const std::string bytes = fixture.string();
    const std::string expected = fixture.string();
    const size_t n = bytes.size();
    if (n == 0 || n > 7 || count % 3 != 0) continue;
    std::vector<std::string> tokens = all_bytes();
    std::map<std::string, int32_t> ids;
    for (size_t begin = 0; begin < n; ++begin) {
      for (size_t length = 1; length <= n - begin; ++length) {
        const std::string token = bytes.substr(begin, length);
        const int32_t next = static_cast<int32_t>(tokens.size());
        const int32_t id = length == 1 ? static_cast<uint8_t>(token[0]) : ids.emplace(token, next).first->second;
        if (id == next) tokens.push_back(token);
        ids[token] = id;
      }
    }
    const Tokenizer tokenizer = *Tokenizer::parse(model_file(tokens), config_file(""));
    for (uint32_t borders = 0; borders < 1u << (n - 1); ++borders) {
      Detokenizer detokenizer(tokenizer);
      std::string text;
      for (size_t begin = 0, end = 1; end <= n; ++end) {
        if (end < n && !(borders >> (end - 1) & 1)) continue;
        text += detokenizer.push(ids.at(bytes.substr(begin, end - begin)));
        ASSERT_LE(detokenizer.held_bytes(), 3u);
        begin = end;
      }
      ASSERT_EQ(text + detokenizer.finish(), expected) << escaped(bytes) << " cut as " << borders;
      ++splits;
    }
  }
  EXPECT_GT(splits, 5000);
}

// Any ids: tokens with parts of characters, added tokens, ids that do not exist.
RC_GTEST_PROP(Detokenizer, PiecesAreTheWholeText, ()) {
  const Tokenizer& tokenizer = **rc::gen::element(&demo_tokenizer(), &small_tokenizer());
  const bool skip = *rc::gen::arbitrary<bool>();
  const auto id =
      rc::gen::weightedOneOf<int32_t>({{4, rc::gen::inRange(0, 256)},
                                       {3, rc::gen::inRange(-2, tokenizer.vocab_size() + 2)},
                                       {1, rc::gen::inRange(tokenizer.vocab_size() - 30, tokenizer.vocab_size())}});
  const auto ids = *rc::gen::container<std::vector<int32_t>>(id);
  Detokenizer detokenizer(tokenizer, skip);
  std::string text;
  for (const int32_t next : ids) {
    const std::string piece = detokenizer.push(next);
    RC_ASSERT(!find_invalid_utf8(piece));
    RC_ASSERT(detokenizer.held_bytes() <= 3u);
    text += piece;
  }
  text += detokenizer.finish();
  std::string expected;
  const std::string bytes = tokenizer.decode(ids, skip);
  if (repair_utf8(bytes, expected) < bytes.size()) expected += kReplacementCharacter;
  RC_ASSERT(text == expected);
}

}  // namespace
}  // namespace ddtree
