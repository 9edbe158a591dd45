// Reads the files of tests/text/fixtures; python/golden/make_tokenizer_fixtures.py describes them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace ddtree {

inline const std::string kFixtures = DDTREE_SOURCE_DIR "/tests/text/fixtures/";
inline const std::string kDemoTarget = DDTREE_SOURCE_DIR "/models/demo/target";
inline const std::string kSmallVocabulary = kFixtures + "o200k-16k";

// Loaded once per program.
inline const Tokenizer& demo_tokenizer() {
  static const Tokenizer tokenizer = *Tokenizer::load(kDemoTarget);
  return tokenizer;
}
inline const Tokenizer& small_tokenizer() {
  static const Tokenizer tokenizer = *Tokenizer::load(kSmallVocabulary);
  return tokenizer;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// FNV-1a over little-endian int32.
class IdHash {
 public:
  void add(int32_t value) {
    for (int i = 0; i < 4; ++i) state_ = (state_ ^ (static_cast<uint32_t>(value) >> (8 * i) & 0xff)) * 0x100000001b3u;
  }
  void add(const std::vector<int32_t>& values) {
    for (const int32_t value : values) add(value);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

class FixtureReader {
 public:
  explicit FixtureReader(const std::string& name) : bytes_(read_file(kFixtures + name)) {}

  uint64_t number() {
    uint64_t n = 0;
    for (int shift = 0;; shift += 7) {
      const uint8_t byte = static_cast<uint8_t>(bytes_.at(at_++));
      n |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return n;
    }
  }
  std::string string() {
    const size_t size = number();
    std::string s = bytes_.substr(at_, size);
    at_ += size;
    return s;
  }
  uint64_t hash() {
    uint64_t h = 0;
    for (int i = 0; i < 8; ++i) h |= static_cast<uint64_t>(static_cast<uint8_t>(bytes_.at(at_++))) << (8 * i);
    return h;
  }
  std::vector<int32_t> ids() {
    std::vector<int32_t> ids(number());
    for (int32_t& id : ids) id = static_cast<int32_t>(number());
    return ids;
  }
  bool at_end() const { return at_ == bytes_.size(); }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

// For messages: the text with what is not printable ASCII escaped, shortened.
inline std::string escaped(std::string_view text) { return testing::PrintToString(std::string(text.substr(0, 300))); }

}  // namespace ddtree
