// Ids of PyPI tiktoken with Kimi's pattern: edges, 10,000 random mixed-script strings, and texts long enough to be cut.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fixture.h"

namespace ddtree {
namespace {

constexpr int kListedCases = 300;

TEST(TokenizerGolden, SameIdsAsTiktoken) {
  FixtureReader fixture("cases.bin");
  const uint64_t count = fixture.number();
  ASSERT_GE(count, 10000u);
  for (uint64_t i = 0; i < count; ++i) {
    std::string text;
    for (uint64_t parts = fixture.number(); parts > 0; --parts) {
      const uint64_t repeat = fixture.number();
      const std::string part = fixture.string();
      for (uint64_t r = 0; r < repeat; ++r) text += part;
    }
    for (const Tokenizer* tokenizer : {&demo_tokenizer(), &small_tokenizer()}) {
      const auto plain = tokenizer->encode(text);
      const auto special = tokenizer->encode_with_special(text);
      ASSERT_TRUE(plain.ok() && special.ok()) << escaped(text);
      IdHash hash;
      hash.add(*plain);
      hash.add(-1);
      hash.add(*special);
      ASSERT_EQ(hash.value(), fixture.hash())
          << "case " << i << ", vocabulary of " << tokenizer->vocab_size() << ": " << escaped(text) << "\n"
          << testing::PrintToString(*plain);
      ASSERT_EQ(tokenizer->decode(*plain), text);
      ASSERT_EQ(tokenizer->decode(*special), text);
      if (i < kListedCases) {
        ASSERT_THAT(*plain, testing::ContainerEq(fixture.ids())) << escaped(text);
        ASSERT_THAT(*special, testing::ContainerEq(fixture.ids())) << escaped(text);
      }
    }
  }
  EXPECT_TRUE(fixture.at_end());
}

}  // namespace
}  // namespace ddtree
