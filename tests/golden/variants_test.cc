// The architectures that the demo does not exercise, against transformers' own classes; see variants/README.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "backend/registry.h"
#include "engine/engine_core.h"
#include "golden/golden_file.h"
#include "model/load.h"

namespace ddtree {
namespace {

const std::string kVariants = "tests/golden/variants/";

struct Case {
  std::string variant, device;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.variant << " on " << c.device; }

class Variant : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    backend_ = *make_backend({GetParam().device, 0, "auto"});
    model_ =
        load_model(*backend_, {DDTREE_SOURCE_DIR "/" + kVariants + GetParam().variant, ""}, {64, 1, 0}).operator*();
  }

  GoldenFile expected() const { return GoldenFile(kVariants + GetParam().variant + "/expected.safetensors"); }

  std::unique_ptr<Backend> backend_;
  LoadedModel model_;
};

float largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::isnan(a[i]) ? HUGE_VALF : std::abs(a[i] - b[i]));
  return worst;
}

TEST_P(Variant, LogitsOfEveryPositionAreWithin1e4) {
  const GoldenFile golden = expected();
  const std::vector<int32_t> prompt = golden.ids("prompt");
  const int32_t n = static_cast<int32_t>(prompt.size()), vocab = model_.decoder->vocab_size();
  KvCacheShape shape;
  shape.pages = 1;
  shape.layers = model_.decoder->layers();
  shape.width = model_.decoder->kv_width();
  KvCache cache = *KvCache::create(*backend_, shape);
  const std::vector<int32_t> pages = {0};
  Batch batch;
  batch.token = prompt;
  batch.position.resize(n);
  std::iota(batch.position.begin(), batch.position.end(), 0);
  batch.kv_row = batch.position;
  batch.ancestors.resize(n);
  batch.segments.push_back({0, 0, n, 0, false, pages});
  std::vector<float> value(n * 2), lse(n), logits(n * vocab);
  std::vector<int32_t> id(n * 2);
  model_.decoder->forward(batch, cache.target());
  model_.decoder->head({TensorView(value.data(), DType::kF32, {n, 2}), TensorView(id.data(), DType::kI32, {n, 2}),
                        TensorView(lse.data(), DType::kF32, {n}), TensorView(logits.data(), DType::kF32, {n, vocab})},
                       batch.position);
  ASSERT_TRUE(backend_->finish().ok());
  EXPECT_LE(largest_difference(logits, golden.floats("logits")), 1e-4f);
}

TEST_P(Variant, GreedyContinuationIsTheSame) {
  const GoldenFile golden = expected();
  EngineOptions options;
  options.scheduler = {
      1,
      1,
      64,
      32,
  };
  options.max_context = 128;
  const auto engine = *EngineCore::create(*backend_, *model_.decoder, nullptr, options);
  Request request;
  request.prompt = golden.ids("prompt");
  request.max_tokens = 16;
  request.ignore_eos = true;
  std::vector<int32_t> ids;
  ASSERT_TRUE(engine
                  ->submit(1, request,
                           [&](Event&& event) {
                             for (const OutputToken& token : event.tokens) ids.push_back(token.id);
                           })
                  .ok());
  while (engine->step()) {
  }
  EXPECT_EQ(ids, golden.ids("greedy"));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* variant :
       {"deepseek-v2-lite", "moonlight", "deepseek-v3-groups", "kimi-k2.6", "fused-experts", "dense-layers"})
    for (const char* device : {"ref", "cpu"}) cases.push_back({variant, device});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(All, Variant, testing::ValuesIn(all_cases()));

TEST(KimiVariant, TapsAreTheResidualStreamAfterEachLayer) {
  const std::string dir = DDTREE_SOURCE_DIR "/" + kVariants + "kimi-k2.6";
  const GoldenFile golden(kVariants + "kimi-k2.6/expected.safetensors");
  const std::vector<int32_t> prompt = golden.ids("prompt");
  const std::vector<float> expected = golden.floats("taps");
  const auto backend = *make_backend({"cpu", 0, "auto"});
  const ModelConfig config = *load_model_config(dir);
  const Checkpoint checkpoint = *Checkpoint::open(dir);
  DecoderOptions options;
  options.max_rows = static_cast<int32_t>(prompt.size());
  for (int32_t i = 0; i < config.num_layers; ++i) options.tap_layers.push_back(i);
  const auto decoder = *make_deepseek_decoder(*backend, config, *load_deepseek(checkpoint, config), options);
  KvCacheShape shape;
  shape.pages = 1;
  shape.layers = decoder->layers();
  shape.width = decoder->kv_width();
  KvCache cache = *KvCache::create(*backend, shape);
  const std::vector<int32_t> pages = {0};
  Batch batch;
  batch.token = prompt;
  batch.position.resize(prompt.size());
  std::iota(batch.position.begin(), batch.position.end(), 0);
  batch.kv_row = batch.position;
  batch.ancestors.resize(prompt.size());
  batch.segments.push_back({0, 0, batch.rows(), 0, false, pages});
  decoder->forward(batch, cache.target());
  const TensorView taps = decoder->taps();
  EXPECT_LE(largest_difference({taps.as<float>(), static_cast<size_t>(taps.elements())}, expected), 1e-4f);
}

// The random drafter of deepseek-v3-groups: sliding and full layers, in-block causality, YaRN amplitude, over four
// rounds.
struct DrafterSetting {
  std::string name;
  YarnAmplitude amplitude;
  bool bidirectional;
};

class DrafterVariant : public testing::TestWithParam<std::string> {};

void replay(const std::string& device, const DrafterSetting& setting) {
  const std::string dir = DDTREE_SOURCE_DIR "/" + kVariants + "deepseek-v3-groups";
  const GoldenFile golden(kVariants + "deepseek-v3-groups/drafter/expected.safetensors");
  const auto backend = *make_backend({device, 0, "auto"});
  const ModelConfig config = *load_model_config(dir);
  DrafterConfig draft_config = *load_drafter_config(dir + "/drafter", {setting.amplitude});
  if (setting.bidirectional)
    for (DrafterLayerConfig& layer : draft_config.layers) layer.causal_block = false;
  const Checkpoint target = *Checkpoint::open(dir), draft = *Checkpoint::open(dir + "/drafter");
  const auto decoder = *make_deepseek_decoder(*backend, config, *load_deepseek(target, config), {1, {0, 1}, {}});
  const auto drafter =
      *make_dflash_drafter(*backend, draft_config, *load_dflash(draft, draft_config), *decoder, {32, 1});

  KvCacheShape shape;
  shape.pages = 1;
  shape.streams = 1;
  shape.draft_layers = drafter->layers();
  shape.draft_width = drafter->kv_width();
  shape.draft_scratch_rows = drafter->block_size();
  KvCache cache = *KvCache::create(*backend, shape);
  const std::vector<int32_t> pages = {0}, tokens = golden.ids("tokens"), observed = golden.ids("observed");
  std::vector<float> taps = golden.floats("taps");
  const std::vector<int32_t> top_id = golden.ids(setting.name + ".top_id");
  const std::vector<float> top_val = golden.floats(setting.name + ".top_val"),
                           lse = golden.floats(setting.name + ".lse");
  const int32_t slots = drafter->slots(), k = 8, width = static_cast<int32_t>(golden.entry("taps").dim[1]);
  int32_t length = 0;
  for (size_t round = 0; round < observed.size(); ++round) {
    Batch rows;
    for (int32_t i = 0; i < observed[round]; ++i) {
      rows.token.push_back(0);
      rows.position.push_back(length + i);
      rows.kv_row.push_back(length + i);
    }
    rows.ancestors.resize(rows.rows());
    drafter->observe(TensorView(taps.data() + length * width, DType::kF32, {observed[round], width}), rows,
                     cache.draft());
    ASSERT_TRUE(backend->finish().ok());
    length += observed[round];
    Batch block;
    for (int32_t slot = 0; slot < drafter->block_size(); ++slot) {
      block.token.push_back(slot == 0 ? tokens[length] : drafter->mask_token());
      block.position.push_back(length + slot);
      block.kv_row.push_back(cache.block_row(0, slot));
    }
    block.ancestors.resize(block.rows());
    block.segments.push_back({0, 0, block.rows(), length, false, pages});
    std::vector<float> value(slots * k), log_sum(slots);
    std::vector<int32_t> id(slots * k);
    drafter->propose(block, cache.draft(),
                     {TensorView(value.data(), DType::kF32, {slots, k}),
                      TensorView(id.data(), DType::kI32, {slots, k}),
                      TensorView(log_sum.data(), DType::kF32, {slots}),
                      {}});
    ASSERT_TRUE(backend->finish().ok());
    const size_t at = round * slots * k;
    EXPECT_EQ(id, std::vector<int32_t>(top_id.begin() + at, top_id.begin() + at + slots * k))
        << setting.name << " round " << round;
    EXPECT_LE(largest_difference(value, std::span(top_val).subspan(at, slots * k)), 1e-4f)
        << setting.name << " round " << round;
    EXPECT_LE(largest_difference(log_sum, std::span(lse).subspan(round * slots, slots)), 1e-4f);
  }
}

TEST_P(DrafterVariant, ProposesTheGoldenCandidates) {
  replay(GetParam(), {"ratio", YarnAmplitude::kRatio, false});
  replay(GetParam(), {"legacy", YarnAmplitude::kLegacy, false});
  replay(GetParam(), {"bidirectional", YarnAmplitude::kRatio, true});
}
INSTANTIATE_TEST_SUITE_P(Backends, DrafterVariant, testing::Values("ref", "cpu"));

}  // namespace
}  // namespace ddtree
