// The target's logits against transformers' float32 ones.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "golden/demo.h"

namespace ddtree {
namespace {

// The logits after a whole prompt, run in chunks of `chunk` rows.
std::vector<float> prompt_logits(DemoPair& pair, const std::vector<int32_t>& prompt, int32_t chunk) {
  Decoder& decoder = *pair.model().decoder;
  const int32_t n = static_cast<int32_t>(prompt.size()), pages = (n + kPageRows - 1) / kPageRows;
  KvCacheShape shape;
  shape.pages = pages;
  shape.layers = decoder.layers();
  shape.width = decoder.kv_width();
  KvCache cache = *KvCache::create(pair.backend(), shape);
  std::vector<int32_t> list;
  EXPECT_TRUE(cache.pool().extend(list, pages).ok());
  std::vector<float> value(2), lse(1), logits(decoder.vocab_size());
  std::vector<int32_t> id(2);
  for (int32_t first = 0; first < n; first += chunk) {
    const int32_t rows = std::min(chunk, n - first);
    Batch batch;
    for (int32_t p = first; p < first + rows; ++p) {
      batch.token.push_back(prompt[p]);
      batch.position.push_back(p);
      batch.kv_row.push_back(KvCache::page_row(list, p));
    }
    batch.ancestors.resize(rows);
    batch.segments.push_back({0, 0, rows, first, false, list});
    decoder.forward(batch, cache.target());
    const std::vector<int32_t> last = {rows - 1};
    decoder.head(
        {TensorView(value.data(), DType::kF32, {1, 2}), TensorView(id.data(), DType::kI32, {1, 2}),
         TensorView(lse.data(), DType::kF32, {1}), TensorView(logits.data(), DType::kF32, {1, decoder.vocab_size()})},
        last);
    EXPECT_TRUE(pair.backend().finish().ok());
  }
  return logits;
}

class PromptLogits : public testing::TestWithParam<std::string> {};

TEST_P(PromptLogits, AreWithin1e4OfTheGoldens) {
  DemoPair& pair = DemoPair::on(GetParam());
  for (int i = 0; i < kGoldenPrompts; ++i) {
    const std::vector<int32_t> prompt = golden_prompt(i);
    const std::vector<float> expected = golden_floats("p" + std::to_string(i) + ".prompt_logits");
    const std::vector<float> logits = prompt_logits(pair, prompt, 512);
    float worst = 0;
    for (size_t v = 0; v < expected.size(); ++v) worst = std::max(worst, std::abs(logits[v] - expected[v]));
    EXPECT_LE(worst, 1e-4f) << "prompt " << i;
  }
}
INSTANTIATE_TEST_SUITE_P(Backends, PromptLogits, testing::Values("ref", "cpu"));

TEST(PromptLogits, DoNotDependOnTheChunks) {
  DemoPair& pair = DemoPair::on("cpu");
  const std::vector<int32_t> prompt = golden_prompt(8);  // 256 tokens
  const std::vector<float> whole = prompt_logits(pair, prompt, 512);
  for (int32_t chunk : {1, 7, 63, 64, 65, 200})
    EXPECT_EQ(prompt_logits(pair, prompt, chunk), whole) << "chunks of " << chunk;
}

}  // namespace
}  // namespace ddtree
