// Recorded blocks: what the demo pair's drafter proposed at every position of the golden texts, and which proposal the
// target agreed with. Enough to replay any way of drafting without a model. See fixtures/README.md.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"

namespace ddtree {

struct RecordedBlocks {
  static constexpr int kTexts = 12, kPositions = 176, kSlots = 15, kRanks = 8;
  static constexpr uint8_t kElsewhere = 255;  // the target's token is not among the recorded ranks
  static constexpr int kBlockBytes = kSlots * (1 + kRanks);

  std::array<int32_t, kTexts> prompt_length = {};
  std::vector<uint8_t> bytes;  // [texts][positions][slots][rank of the target's token, then a code for each rank]

  static std::string path() { return DDTREE_SOURCE_DIR "/tests/engine/fixtures/blocks.bin"; }

  // Log-probabilities as bytes, finer near 0: −(code / 64)².
  static uint8_t encode(double log_prob) {
    return static_cast<uint8_t>(std::min(255.0, std::round(64 * std::sqrt(std::max(0.0, -log_prob)))));
  }
  static float decode(uint8_t code) {
    const float root = static_cast<float>(code) / 64;
    return -root * root;
  }

  uint8_t* block(int text, int position) { return bytes.data() + offset(text, position); }
  const uint8_t* block(int text, int position) const { return bytes.data() + offset(text, position); }
  static size_t offset(int text, int position) {
    CHECK(text >= 0 && text < kTexts && position >= 0 && position < kPositions);
    return (static_cast<size_t>(text) * kPositions + position) * kBlockBytes;
  }
  int rank(int text, int position, int slot) const { return block(text, position)[slot * (1 + kRanks)]; }
  float log_prob(int text, int position, int slot, int rank) const {
    return decode(block(text, position)[slot * (1 + kRanks) + 1 + rank]);
  }

  static RecordedBlocks load() {
    RecordedBlocks out;
    std::ifstream in(path(), std::ios::binary);
    in.read(reinterpret_cast<char*>(out.prompt_length.data()), sizeof(out.prompt_length));
    out.bytes.assign(std::istreambuf_iterator<char>(in), {});
    CHECK_EQ(out.bytes.size(), size_t{kTexts} * kPositions * kBlockBytes);
    return out;
  }
  void save(const std::string& to) const {
    std::ofstream out(to, std::ios::binary);
    out.write(reinterpret_cast<const char*>(prompt_length.data()), sizeof(prompt_length));
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    CHECK(out.good());
  }
};

}  // namespace ddtree
