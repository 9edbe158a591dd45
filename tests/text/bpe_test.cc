#include "text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "vocabulary.h"

namespace ddtree {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> encode(const Bpe& bpe, std::string_view piece) {
  std::vector<int32_t> ids;
  bpe.encode(piece, ids);
  return ids;
}

TEST(Bpe, MergesTheLowestRankFirstAndTheLeftmostOfThose) {
  const Bpe bpe = *Bpe::parse(model_file_after_bytes({"bc", "ab", "abc", "aa"}), "m");
  EXPECT_EQ(bpe.size(), 260);
  EXPECT_EQ(bpe.bytes(257), "ab");
  EXPECT_THAT(encode(bpe, ""), ElementsAre());
  EXPECT_THAT(encode(bpe, "x"), ElementsAre('x'));
  EXPECT_THAT(encode(bpe, "abc"), ElementsAre(258));        // a token of its own, though no merge makes it:
  EXPECT_THAT(encode(bpe, "abcx"), ElementsAre(258, 'x'));  // "bc" comes first, and then a + bc is a token
  EXPECT_THAT(encode(bpe, "abx"), ElementsAre(257, 'x'));
  EXPECT_THAT(encode(bpe, "aaa"), ElementsAre(259, 'a'));
  EXPECT_THAT(encode(bpe, "aaab"), ElementsAre(259, 257));  // "ab" (257) before "aa" (259)
}

// The rule, word for word, on lists of strings.
std::vector<int32_t> encode_by_brute_force(const std::map<std::string, int32_t>& ranks, const std::string& piece) {
  if (const auto whole = ranks.find(piece); whole != ranks.end()) return {whole->second};
  std::vector<std::string> parts;
  for (const char c : piece) parts.push_back(std::string(1, c));
  while (true) {
    int32_t best_rank = -1;
    size_t best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto merge = ranks.find(parts[i] + parts[i + 1]);
      if (merge == ranks.end() || (best_rank >= 0 && merge->second >= best_rank)) continue;
      best_rank = merge->second;
      best = i;
    }
    if (best_rank < 0) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<int64_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(ranks.at(part));
  return ids;
}

// Random vocabularies over three letters, ranks shuffled, and pieces on both sides of the switch to the heap.
RC_GTEST_PROP(Bpe, MatchesBruteForce, ()) {
  const auto letter = rc::gen::elementOf(std::string("abc"));
  const auto token = rc::gen::resize(8, rc::gen::nonEmpty(rc::gen::container<std::string>(letter)));
  std::vector<std::string> tokens = all_bytes();
  for (const std::string& extra : *rc::gen::resize(60, rc::gen::container<std::vector<std::string>>(token)))
    if (std::find(tokens.begin(), tokens.end(), extra) == tokens.end()) tokens.push_back(extra);
  std::mt19937 shuffle(*rc::gen::arbitrary<uint32_t>());
  std::shuffle(tokens.begin(), tokens.end(), shuffle);

  std::map<std::string, int32_t> ranks;
  for (size_t i = 0; i < tokens.size(); ++i) ranks[tokens[i]] = static_cast<int32_t>(i);
  const Bpe bpe = *Bpe::parse(model_file(tokens), "m");
  for (int i = 0; i < 8; ++i) {
    const size_t length = *rc::gen::inRange<size_t>(1, i < 4 ? 30 : 400);
    const std::string piece = *rc::gen::container<std::string>(length, letter);
    RC_ASSERT(encode(bpe, piece) == encode_by_brute_force(ranks, piece));
  }
}

// If each merge looked at all the others, this would take minutes.
TEST(Bpe, LongPiecesAreNotQuadratic) {
  const Bpe bpe = *Bpe::parse(model_file_after_bytes({"aa", "aaaa", "aaaaaaaa"}), "m");
  const std::vector<int32_t> ids = encode(bpe, std::string(1'000'001, 'a'));
  ASSERT_EQ(ids.size(), 125'001u);
  EXPECT_TRUE(std::all_of(ids.begin(), ids.end() - 1, [](int32_t id) { return id == 258; }));
  EXPECT_EQ(ids.back(), 'a');
}

TEST(Bpe, RanksMayComeInAnyOrder) {
  std::string file = "YWI= 256\r\n\n";  // also: other line ends, empty lines, no newline at the end
  for (int rank = 255; rank >= 0; --rank) file += base64(all_bytes()[rank]) + " " + std::to_string(rank) + "\n";
  file.pop_back();
  const auto bpe = Bpe::parse(file, "m");
  ASSERT_TRUE(bpe.ok()) << bpe.error().message;
  EXPECT_THAT(encode(*bpe, "xab"), ElementsAre('x', 256));
}

// Eight-byte tokens of one hash, in the bits that a small table uses: the steps of the hash taken back.
std::string colliding_tokens(uint64_t count) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  uint64_t inverse = kOdd;  // of kOdd, modulo 2^64
  for (int i = 0; i < 6; ++i) inverse *= 2 - kOdd * inverse;
  std::string file;
  for (uint64_t k = 0; k < count; ++k) {
    const uint64_t mixed = k << 50;
    const uint64_t word = (mixed ^ mixed >> 32) * inverse ^ 8 * kOdd;
    const std::string token(reinterpret_cast<const char*>(&word), 8);
    file += base64(token) + " " + std::to_string(256 + k) + "\n";
  }
  return file;
}

struct Bad {
  std::string file;
  std::string message;
};

TEST(Bpe, RefusesBrokenFiles) {
  const std::string bytes = model_file(all_bytes());
  std::string no_newline_byte = bytes;  // "Cg==" is '\n'
  no_newline_byte.replace(no_newline_byte.find("Cg=="), 4, "YWI=");
  std::vector<Bad> cases = {
      {"", "dir/tiktoken.model: no token for the single byte 0x00"},
      {no_newline_byte, "dir/tiktoken.model: no token for the single byte 0x0a"},
      {bytes + "YWI=\n", "dir/tiktoken.model:257: expected \"base64 rank\""},
      {bytes + "YWI= \n", ":257: the rank \"\" is not a number"},
      {bytes + "YWI=  256\n", ":257: the rank \" 256\" is not a number"},
      {bytes + "YWI= 256 \n", ":257: the rank \"256 \" is not a number"},
      {bytes + "YWI= -1\n", ":257: the rank \"-1\" is not a number"},
      {bytes + "YWI= 2147483648\n", ":257: the rank \"2147483648\" is not a number from 0 to 2147483647"},
      {bytes + "YWI= 2147483647\n", ":257: rank 2147483647 leaves a gap: the file has 257 tokens, so ranks end at 256"},
      {bytes + "YWI= 257\n", ":257: rank 257 leaves a gap"},
      {bytes + "YWI= 7\n", ":257: rank 7 was given in line 8 already"},
      {bytes + "\nYQ== 256\n", ":258: the same token as in line 98, with another rank"},
      {bytes + " 256\n", ":257: a token of 0 bytes; 1 to 1024 are supported"},
      {bytes + base64(std::string(1025, 'a')) + " 256\n", ":257: a token of 1025 bytes; 1 to 1024 are supported"},
      {bytes + "YWI 256\n", ":257: \"YWI\" is not valid base64"},
      {bytes + "YW!= 256\n", ":257: \"YW!=\" is not valid base64"},
      {bytes + "YW=i 256\n", ":257: \"YW=i\" is not valid base64"},
      {bytes + "Y=== 256\n", ":257: \"Y===\" is not valid base64"},
      {bytes + "==== 256\n", ":257: \"====\" is not valid base64"},
      {bytes + "YWJ= 256\n", ":257: \"YWJ=\" is not valid base64"},  // bits beyond the last byte
      {bytes + "\x1b[31m 256\n", ":257: \"?[31m\" is not valid base64"},
      {bytes + "YWI= " + std::string(50, '\x0b') + "\n",
       ":257: the rank \"????????????????????????????????????????\"…"},
      {bytes + colliding_tokens(2000), "too many tokens collide in the lookup table"},
      {bytes + std::string(64 << 20, '\n'), "at most 67108864 are read"},
  };
  std::string many;
  for (int i = 0; i <= 1 << 20; ++i) many += "YWI= 0\n";
  cases.push_back({std::move(many), "dir/tiktoken.model:1048577: more than 1048576 tokens"});
  for (const Bad& bad : cases) {
    const auto bpe = Bpe::parse(bad.file, "dir/tiktoken.model");
    ASSERT_FALSE(bpe.ok()) << bad.message;
    EXPECT_THAT(bpe.error().message, HasSubstr(bad.message));
  }
  EXPECT_TRUE(Bpe::parse(bytes + base64(std::string(1024, 'a')) + " 256\n", "m").ok());
}

}  // namespace
}  // namespace ddtree
