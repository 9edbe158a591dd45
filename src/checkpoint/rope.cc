#include "checkpoint/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <fmt/core.h>

#include "checkpoint/config_fields.h"

namespace ddtree {
namespace {

constexpr double kMaxFactor = 65536;

// The pair whose wavelength fits `rotations` times into the original context.
double correction_pair(const RopeConfig& rope, double dim, double rotations) {
  return dim * std::log(static_cast<double>(rope.original_max_position) / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

Result<double> parse_theta(const JsonValue& config, const std::optional<JsonValue>& block) {
  TRY_ASSIGN(const std::optional<double> outside, config.find_double("rope_theta", 1.001, 1e15));
  std::optional<double> inside;
  if (block) {
    TRY_ASSIGN(inside, block->find_double("rope_theta", 1.001, 1e15));
  }
  if (!inside && !outside) return config.get_double("rope_theta");
  if (inside && outside && *inside != *outside)
    return block->error(Code::kInvalidArgument, "rope_theta contradicts the rope_theta beside the block");
  return inside ? *inside : *outside;
}

Result<RopeType> parse_type(const JsonValue& block) {
  TRY_ASSIGN(const std::optional<std::string_view> old_name, block.find_string("type"));
  TRY_ASSIGN(const std::optional<std::string_view> new_name, block.find_string("rope_type"));
  if (old_name && new_name && *old_name != *new_name)
    return block.error(Code::kInvalidArgument, "type and rope_type contradict each other");
  if (!old_name && !new_name) {
    if (!block.find("factor")) return RopeType::kPlain;
    return block.error(Code::kInvalidArgument, "has a factor but neither rope_type nor type");
  }
  const std::string_view name = new_name ? *new_name : *old_name;
  if (name == "default") return RopeType::kPlain;
  if (name == "yarn") return RopeType::kYarn;
  return block.error(Code::kUnsupported, fmt::format("rope type \"{}\" is not supported, only default and yarn", name));
}

Status parse_yarn(const JsonValue& block, RopeConfig* rope) {
  TRY_ASSIGN(rope->factor, block.get_double("factor", 1, kMaxFactor));
  TRY_ASSIGN(rope->original_max_position, block.get_int("original_max_position_embeddings", 1, kMaxPositions));
  TRY_ASSIGN(const std::optional<double> fast, block.find_double("beta_fast", 1e-3, 1e6));
  TRY_ASSIGN(const std::optional<double> slow, block.find_double("beta_slow", 1e-3, 1e6));
  TRY_ASSIGN(const std::optional<double> mscale, block.find_double("mscale", 0, 100));
  TRY_ASSIGN(const std::optional<double> all_dim, block.find_double("mscale_all_dim", 0, 100));
  TRY_ASSIGN(rope->attention_factor, block.find_double("attention_factor", 1e-3, 1e3));
  TRY_ASSIGN(const std::optional<bool> truncate, block.find_bool("truncate"));
  rope->beta_fast = fast.value_or(rope->beta_fast);
  rope->beta_slow = slow.value_or(rope->beta_slow);
  rope->mscale = mscale.value_or(rope->mscale);
  rope->mscale_all_dim = all_dim.value_or(rope->mscale_all_dim);
  if (rope->beta_fast < rope->beta_slow)
    return block.error(Code::kInvalidArgument, "beta_fast is smaller than beta_slow");
  if (!truncate.value_or(true)) return block.error(Code::kUnsupported, "truncate = false is not supported");
  return {};
}

}  // namespace

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

std::vector<double> rope_inv_freq(const RopeConfig& rope, int64_t dim) {
  const double d = static_cast<double>(dim);
  const bool yarn = rope.type == RopeType::kYarn;
  const double low = yarn ? std::max(0.0, std::floor(correction_pair(rope, d, rope.beta_fast))) : 0;
  double high = yarn ? std::min(d - 1, std::ceil(correction_pair(rope, d, rope.beta_slow))) : 0;
  if (high == low) high += 0.001;
  std::vector<double> speed(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < speed.size(); ++i) {
    const double plain = std::pow(rope.theta, -2.0 * static_cast<double>(i) / d);
    const double ramp = yarn ? std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0) : 0;
    speed[i] = plain / rope.factor * ramp + plain * (1 - ramp);
  }
  return speed;
}

double rope_amplitude(const RopeConfig& rope) {
  if (rope.type != RopeType::kYarn) return 1;
  if (rope.attention_factor) return *rope.attention_factor;
  return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
}

double rope_softmax_factor(const RopeConfig& rope) {
  if (rope.type != RopeType::kYarn) return 1;
  const double m = yarn_mscale(rope.factor, rope.mscale_all_dim);
  return m * m;
}

Result<RopeConfig> parse_rope(const JsonValue& config) {
  std::optional<JsonValue> block = config.find("rope_parameters");
  if (!block || block->is_null()) block = config.find("rope_scaling");
  if (block && block->is_null()) block.reset();
  if (block) TRY(block->members());
  RopeConfig rope;
  TRY_ASSIGN(rope.theta, parse_theta(config, block));
  if (!block) return rope;
  TRY_ASSIGN(const std::optional<double> partial, block->find_double("partial_rotary_factor"));
  if (partial.value_or(1) != 1) return block->error(Code::kUnsupported, "partial_rotary_factor other than 1");
  TRY_ASSIGN(rope.type, parse_type(*block));
  if (rope.type == RopeType::kYarn) TRY(parse_yarn(*block, &rope));
  return rope;
}

}  // namespace ddtree
