#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "fixture.h"
#include "vocabulary.h"

namespace ddtree {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kSmallRanks = 16000;

TEST(Tokenizer, DemoModel) {
  const Tokenizer& t = demo_tokenizer();
  EXPECT_EQ(t.vocab_size(), 4096);
  EXPECT_EQ(t.bos_id(), 4076);
  EXPECT_EQ(t.eos_id(), 4077);
  EXPECT_EQ(t.special_id("<|mask|>"), 4093);
  EXPECT_EQ(t.special_id("<|reserved_token_4095|>"), std::nullopt);  // the table is full of named ones
  EXPECT_EQ(t.token_bytes(0), std::string_view("\0", 1));
  EXPECT_EQ(t.token_bytes(4095), "[PAD]");
  EXPECT_EQ(t.token_bytes(4096), "");
}

// Nothing in the code may take a byte's value for its id.
TEST(Tokenizer, BytesInAnotherOrder) {
  const Tokenizer& t = small_tokenizer();
  EXPECT_EQ(t.token_bytes(0), "!");
  EXPECT_EQ(t.token_bytes(15), "0");
  EXPECT_EQ(t.token_bytes(198), "\n");
  EXPECT_EQ(t.token_bytes(220), " ");
  EXPECT_THAT(*t.encode("!"), ElementsAre(0));
}

TEST(Tokenizer, SpecialIdsAreTakenAsTheyAre) {
  const Tokenizer& t = small_tokenizer();
  EXPECT_EQ(t.vocab_size(), kSmallRanks + 256);  // from text_config of config.json
  EXPECT_EQ(t.bos_id(), kSmallRanks);
  EXPECT_EQ(t.eos_id(), kSmallRanks + 1);  // named by an object
  EXPECT_EQ(t.special_id("<|im_end|>"), kSmallRanks + 2);
  EXPECT_EQ(t.special_id("<|start_header_id|>"), kSmallRanks + 6);  // past a gap
  EXPECT_EQ(t.special_id("</think>"), kSmallRanks + 23);
  EXPECT_EQ(t.special_id("[UNK]"), kSmallRanks + 254);
  EXPECT_EQ(t.special_id("[PAD]"), kSmallRanks + 255);
  EXPECT_EQ(t.special_id("im_end"), std::nullopt);
  EXPECT_EQ(t.special_id(""), std::nullopt);
}

TEST(Tokenizer, EveryIdOfTheReservedRangeHasAName) {
  const Tokenizer& t = small_tokenizer();
  for (int32_t id = kSmallRanks; id < kSmallRanks + 256; ++id) {
    ASSERT_FALSE(t.token_bytes(id).empty()) << id;
    EXPECT_EQ(t.special_id(t.token_bytes(id)), id);
    EXPECT_THAT(*t.encode_with_special(t.token_bytes(id)), ElementsAre(id));
  }
  EXPECT_EQ(t.token_bytes(kSmallRanks + 5), "<|reserved_token_16005|>");
  EXPECT_TRUE(t.is_special(kSmallRanks + 5));
  EXPECT_EQ(t.token_bytes(kSmallRanks + 256), "");
}

TEST(Tokenizer, IdsWithoutATokenAreEmpty) {
  const std::vector<int32_t> ids = {'a', -1, 300, 255 + 256, 600, 1999, 2000, INT32_MAX, INT32_MIN, 'b'};
  // 2000 rows: 256 bytes, 256 reserved, padding.
  const auto t = Tokenizer::parse(model_file(all_bytes()), config_file(""), 2000);
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(t->vocab_size(), 2000);
  EXPECT_EQ(t->decode(ids), "a<|reserved_token_300|><|reserved_token_511|>b");
  EXPECT_EQ(t->decode(ids, true), "ab");
  EXPECT_FALSE(t->is_special(600));
  EXPECT_FALSE(t->is_special(-1));
}

TEST(Tokenizer, TheTableEndsWhereTheModelEnds) {
  const auto short_table = Tokenizer::parse(model_file(all_bytes()), config_file(""), 258);
  ASSERT_TRUE(short_table.ok());
  EXPECT_EQ(short_table->token_bytes(257), "<|reserved_token_257|>");
  EXPECT_EQ(short_table->token_bytes(258), "");

  // Without a config.json, it ends with the last name.
  const auto unknown = Tokenizer::parse(model_file(all_bytes()), config_file(R"("300": {"content": "<x>"})"));
  ASSERT_TRUE(unknown.ok());
  EXPECT_EQ(unknown->vocab_size(), 301);
  EXPECT_EQ(unknown->token_bytes(299), "<|reserved_token_299|>");
  EXPECT_EQ(unknown->token_bytes(301), "");

  // A name past the reserved range leaves a gap without names.
  const auto far = Tokenizer::parse(model_file(all_bytes()), config_file(R"("600": {"content": "<x>"})"), 1000);
  ASSERT_TRUE(far.ok());
  EXPECT_EQ(far->token_bytes(511), "<|reserved_token_511|>");
  EXPECT_EQ(far->token_bytes(512), "");
  EXPECT_EQ(far->token_bytes(600), "<x>");
}

// Kimi marks its thinking and tool tokens as not special: a reply without special tokens still shows them.
TEST(Tokenizer, SkipsSpecialTokensOnly) {
  const Tokenizer& t = small_tokenizer();
  const std::vector<int32_t> ids =
      *t.encode_with_special("[BOS]<think>hm</think>yes<|reserved_token_16005|><|im_end|>");
  EXPECT_EQ(t.decode(ids, true), "<think>hm</think>yes");
  EXPECT_FALSE(t.is_special(*t.special_id("<think>")));
  EXPECT_FALSE(t.is_special(*t.special_id("<|tool_call_begin|>")));
  EXPECT_FALSE(t.is_special('a'));
}

// A user who writes control tokens writes text.
RC_GTEST_PROP(Tokenizer, MessagesNeverHoldControlTokens, ()) {
  const Tokenizer& t = **rc::gen::element(&demo_tokenizer(), &small_tokenizer());
  const int32_t ranks = *t.bos_id();  // the first added token in both
  std::string text;
  for (int i = *rc::gen::inRange(1, 6); i > 0; --i) {
    const std::string_view name = t.token_bytes(*rc::gen::inRange(ranks, t.vocab_size()));
    text += name.substr(0, *rc::gen::inRange<size_t>(0, name.size() + 1));
    text += *rc::gen::element<std::string>("", " ", "<", "|>", "x", "中", name.data());
  }
  const std::vector<int32_t> ids = *t.encode(text);
  RC_ASSERT(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id < ranks; }));
  RC_ASSERT(t.decode(ids) == text);
}

TEST(Tokenizer, TheLeftmostAndLongestAddedTokenIsTaken) {
  const auto t =
      Tokenizer::parse(model_file(all_bytes()), config_file(R"("256": {"content": "ab"}, "257": {"content": "abcd"},
                                                 "258": {"content": "bcdefg"}, "259": {"content": "é"})"));
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_THAT(*t->encode_with_special("xabcdefg"), ElementsAre('x', 257, 'e', 'f', 'g'));
  EXPECT_THAT(*t->encode_with_special("abcabcd"), ElementsAre(256, 'c', 257));
  EXPECT_THAT(*t->encode_with_special("bcdefgab"), ElementsAre(258, 256));
  EXPECT_THAT(*t->encode_with_special("aé"), ElementsAre('a', 259));
  EXPECT_THAT(*t->encode_with_special("è"), ElementsAre(0xc3, 0xa8));  // shares its first byte with é
  EXPECT_THAT(*t->encode_with_special(""), ElementsAre());
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  for (const std::string text : {"abc\xff", "abc\xe4\xb8", "abc\xed\xa0\x80", "abc\xc0\xaf"}) {
    for (const auto& ids : {demo_tokenizer().encode(text), demo_tokenizer().encode_with_special(text)}) {
      ASSERT_FALSE(ids.ok());
      EXPECT_EQ(ids.error().code, Code::kInvalidArgument);
      EXPECT_THAT(ids.error().message, HasSubstr("not valid UTF-8 at byte 3"));
    }
  }
}

TEST(Tokenizer, ServesManyThreads) {
  const std::string text = read_file(DDTREE_SOURCE_DIR "/models/demo/README.md");
  const std::vector<int32_t> expected = *small_tokenizer().encode(text);
  std::vector<std::vector<int32_t>> ids(4);
  std::vector<std::thread> threads;
  for (auto& out : ids) threads.emplace_back([&] { out = *small_tokenizer().encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& out : ids) EXPECT_EQ(out, expected);
}

TEST(Tokenizer, RefusesBrokenConfigs) {
  struct Bad {
    std::string config;
    std::string message;
    int32_t vocab_size = 0;
  };
  const std::vector<Bad> cases = {
      {"", "d/tokenizer_config.json"},
      {"[]", "d/tokenizer_config.json: is an array"},
      {"{}", "d/tokenizer_config.json: tokenizer_class"},
      {R"({"tokenizer_class": "Qwen2Tokenizer"})", "tokenizer_class: \"Qwen2Tokenizer\" is not known"},
      {R"({"tokenizer_class": "TikTokenTokenizer"})", "added_tokens_decoder"},
      {R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": []})", "added_tokens_decoder"},
      {config_file(R"("x": {"content": "a"})"), "added_tokens_decoder.x: the key must be a token id"},
      {config_file(R"("": {"content": "a"})"), "the key must be a token id"},
      {config_file(R"("-300": {"content": "a"})"), "the key must be a token id"},
      {config_file(R"("300 ": {"content": "a"})"), "the key must be a token id"},
      {config_file(R"("99999999999999999999": {"content": "a"})"), "the key must be a token id"},
      {config_file(R"("255": {"content": "a"})"), "added_tokens_decoder.255: id 255 is that of a BPE rank"},
      {config_file(R"("300": {"content": "a"})"), "300: id 300 is past the last one, 299, of the model's vocabulary",
       300},
      {config_file(R"("65792": {"content": "a"})"), "id 65792 is 65536 or more past the 256 BPE ranks"},
      {config_file(R"("2000000000": {"content": "a"})"), "id 2000000000 is 65536 or more past", 2147483647},
      {config_file(R"("300": "a")"), "added_tokens_decoder.300"},
      {config_file(R"("300": {"special": true})"), "added_tokens_decoder.300"},
      {config_file(R"("300": {"content": ""})"), "300: the content is empty; it would match everywhere"},
      {config_file(R"("300": {"content": "a", "lstrip": true})"), "300: \"lstrip\": true is not supported"},
      {config_file(R"("300": {"content": "a", "rstrip": true})"), "300: \"rstrip\": true is not supported"},
      {config_file(R"("300": {"content": "a", "single_word": true})"), "300: \"single_word\": true is not supported"},
      {config_file(R"("300": {"content": "a", "special": 1})"), "300.special"},
      {config_file(R"("300": {"content": "a"}, "301": {"content": "a"})"), "\"a\" has two ids, 300 and 301"},
      {config_file(R"("300": {"content": "<|reserved_token_299|>"})"),
       "\"<|reserved_token_299|>\" has two ids, 299 and 300"},
      {config_file(R"("300": {"content": "a"}, "0300": {"content": "b"})"),
       "id 300 is given twice, written differently"},
      {config_file(R"("300": {"content": "a"})", R"(, "bos_token": "b")"),
       "bos_token: \"b\" is not in added_tokens_decoder"},
      {config_file(R"("300": {"content": "a"})", R"(, "eos_token": {"content": "b"})"), "eos_token: \"b\" is not in"},
      {config_file(R"("300": {"content": "a"})", R"(, "eos_token": 7)"), "eos_token"},
      {config_file(""), "256 ranks, but vocab_size of the model's config.json is 255", 255},
  };
  for (const Bad& bad : cases) {
    const auto t = Tokenizer::parse(model_file(all_bytes()), bad.config, bad.vocab_size, "d");
    ASSERT_FALSE(t.ok()) << bad.message;
    EXPECT_THAT(t.error().message, HasSubstr(bad.message));
  }
}

TEST(Tokenizer, BosAndEosMayBeMissing) {
  const auto t = Tokenizer::parse(model_file(all_bytes()), config_file("", R"(, "bos_token": null)"));
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(t->bos_id(), std::nullopt);
  EXPECT_EQ(t->eos_id(), std::nullopt);
}

class TokenizerFiles : public testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(dir_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void write(const std::string& file, const std::string& bytes) {
    std::ofstream(dir_ + "/" + file, std::ios::binary) << bytes;
  }
  Error load_error() {
    const auto t = Tokenizer::load(dir_);
    EXPECT_FALSE(t.ok());
    return t.error();
  }

  std::string dir_ = testing::TempDir() + "ddtree_tokenizer_XXXXXX";
};

TEST_F(TokenizerFiles, MissingFiles) {
  EXPECT_EQ(load_error().code, Code::kNotFound);
  EXPECT_THAT(load_error().message, HasSubstr(dir_ + "/tiktoken.model"));
  write("tiktoken.model", model_file(all_bytes()));
  EXPECT_EQ(load_error().code, Code::kNotFound);
  EXPECT_THAT(load_error().message, HasSubstr(dir_ + "/tokenizer_config.json"));
  write("tokenizer_config.json", config_file(""));
  const auto t = Tokenizer::load(dir_);
  ASSERT_TRUE(t.ok()) << t.error().message;
  EXPECT_EQ(t->vocab_size(), 256);
}

TEST_F(TokenizerFiles, OnlyTokenizerJson) {
  write("tokenizer.json", "{}");
  write("tokenizer_config.json", config_file(""));
  EXPECT_EQ(load_error().code, Code::kUnsupported);
  EXPECT_THAT(load_error().message, HasSubstr(dir_ + ": has tokenizer.json but no tiktoken.model"));
}

TEST_F(TokenizerFiles, NotAFile) {
  std::filesystem::create_directories(dir_ + "/tiktoken.model");
  EXPECT_EQ(load_error().code, Code::kInvalidArgument);
  EXPECT_THAT(load_error().message, HasSubstr(dir_ + "/tiktoken.model"));
}

TEST_F(TokenizerFiles, TooLarge) {
  write("tiktoken.model", "");
  write("tokenizer_config.json", config_file(""));
  std::filesystem::resize_file(dir_ + "/tiktoken.model", uintmax_t{1} << 40);  // without blocks on the disk
  EXPECT_EQ(load_error().code, Code::kUnsupported);
  EXPECT_THAT(load_error().message, HasSubstr("1099511627776 bytes; at most 67108864 are read"));
  std::filesystem::resize_file(dir_ + "/tiktoken.model", 0);
  write("tiktoken.model", model_file(all_bytes()));
  std::filesystem::resize_file(dir_ + "/tokenizer_config.json", uintmax_t{1} << 40);
  EXPECT_THAT(load_error().message, HasSubstr(dir_ + "/tokenizer_config.json"));
}

TEST_F(TokenizerFiles, VocabSizeOfTheModel) {
  write("tiktoken.model", model_file(all_bytes()));
  write("tokenizer_config.json", config_file(""));
  write("config.json", R"({"vocab_size": 300})");
  EXPECT_EQ(Tokenizer::load(dir_)->vocab_size(), 300);
  write("config.json", R"({"vocab_size": 1, "text_config": {"vocab_size": 400}})");
  EXPECT_EQ(Tokenizer::load(dir_)->vocab_size(), 400);
  for (const char* broken :
       {"", "{}", R"({"vocab_size": 0})", R"({"vocab_size": 2147483648})", R"({"vocab_size": "1"})"}) {
    write("config.json", broken);
    EXPECT_THAT(load_error().message, HasSubstr(dir_ + "/config.json")) << broken;
  }
  write("config.json", R"({"vocab_size": 255})");
  EXPECT_THAT(load_error().message, HasSubstr(dir_ + "/tiktoken.model: 256 ranks, but vocab_size"));
}

}  // namespace
}  // namespace ddtree
