// The fixture of the policy's simulator (tests/engine/fixtures) against the demo pair: records it, or checks a sample.

#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/recorded_blocks.h"
#include "golden/demo.h"

namespace ddtree {
namespace {

constexpr int kCodeTolerance = 2;  // a float32 log-probability near a border of two codes, on another instruction set

// The block drafted with `position` tokens of the golden text behind the prompt and the next one as root.
std::vector<uint8_t> block_at(EngineCore& engine, int text, int position) {
  const std::vector<int32_t> greedy = golden_greedy(text);
  std::vector<int32_t> prompt = golden_prompt(text);
  prompt.insert(prompt.end(), greedy.begin(), greedy.begin() + position);
  Request request = greedy_request(std::move(prompt), 3, {SpecMode::kTree, 8, false});
  request.trace = true;
  const Decoded decoded = decode(engine, std::move(request));
  const CandidateTable& table = decoded.trace.at(0).candidates;
  CHECK_EQ(table.slots, RecordedBlocks::kSlots);
  std::vector<uint8_t> out;
  for (int slot = 0; slot < table.slots; ++slot) {
    const int32_t* ids = &table.top_id[slot * table.k];
    const int32_t* end = ids + RecordedBlocks::kRanks;
    const int32_t* found = std::find(ids, end, greedy[position + 1 + slot]);
    out.push_back(found == end ? RecordedBlocks::kElsewhere : static_cast<uint8_t>(found - ids));
    for (int rank = 0; rank < RecordedBlocks::kRanks; ++rank)
      out.push_back(RecordedBlocks::encode(table.top_value[slot * table.k + rank] - table.lse[slot]));
  }
  return out;
}

void record(EngineCore& engine, const char* to) {
  RecordedBlocks recorded;
  for (int text = 0; text < RecordedBlocks::kTexts; ++text) {
    recorded.prompt_length[text] = static_cast<int32_t>(golden_prompt(text).size());
    for (int position = 0; position < RecordedBlocks::kPositions; ++position) {
      const std::vector<uint8_t> block = block_at(engine, text, position);
      recorded.bytes.insert(recorded.bytes.end(), block.begin(), block.end());
    }
  }
  recorded.save(to);
}

TEST(RecordedBlocks, AreWhatTheDemoPairProposes) {
  const auto engine = DemoPair::on("cpu").engine(1, 0, true, true);
  if (const char* to = std::getenv("DDTREE_RECORD_BLOCKS")) record(*engine, to);
  const RecordedBlocks recorded = RecordedBlocks::load();
  for (int text : {0, 4, 7, 11}) {
    EXPECT_EQ(recorded.prompt_length[text], std::ssize(golden_prompt(text)));
    for (int position : {0, 31, 175}) {
      const std::vector<uint8_t> now = block_at(*engine, text, position);
      const uint8_t* then = recorded.block(text, position);
      for (int i = 0; i < RecordedBlocks::kBlockBytes; ++i)
        EXPECT_NEAR(now[i], then[i], i % (1 + RecordedBlocks::kRanks) == 0 ? 0 : kCodeTolerance)
            << "text " << text << " position " << position << " byte " << i;
    }
  }
}

}  // namespace
}  // namespace ddtree
