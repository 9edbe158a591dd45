// Any bytes as a target's config.json and generation_config.json, and as a drafter's config.json.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checkpoint/drafter_config.h"
#include "checkpoint/model_config.h"

namespace ddtree {
namespace {

void check_speeds(const std::vector<double>& speeds, double amplitude) {
  for (const double speed : speeds) CHECK(std::isfinite(speed));
  CHECK(std::isfinite(amplitude));
}

void try_target(std::string_view text) {
  const Result<ModelConfig> config = parse_model_config(text, text);
  if (!config.ok()) return;
  check_speeds(config->inv_freq, config->rope_amplitude);
  CHECK(std::isfinite(config->softmax_scale));
  CHECK_LE(config->topk_groups, config->num_groups);
  if (config->num_experts > 0) CHECK_EQ(config->num_experts % config->num_groups, 0);
}

void try_drafter(std::string_view text) {
  const Result<DrafterConfig> config = parse_drafter_config(text);
  if (!config.ok()) return;
  check_speeds(config->inv_freq, config->rope_amplitude);
  CHECK_EQ(static_cast<int64_t>(config->layers.size()), config->num_layers);
  CHECK(!config->target_layer_ids.empty());
}

}  // namespace
}  // namespace ddtree

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ddtree::try_target(text);
  ddtree::try_drafter(text);
  return 0;
}
