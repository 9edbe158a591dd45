#include "checkpoint/quant_config.h"

#include <optional>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace ddtree {
namespace {

constexpr std::string_view kSupported =
    "; supported are plain BF16, F16 and F32 weights and compressed-tensors pack-quantized INT4 (symmetric, by group)";

Error refuse(const JsonValue& at, std::string_view what) {
  return at.error(Code::kUnsupported, fmt::format("{}{}", what, kSupported));
}

// Refuses a string member that is there and is not `wanted`.
Status want(const JsonValue& block, std::string_view key, std::string_view wanted) {
  TRY_ASSIGN(const std::optional<std::string_view> value, block.find_string(key));
  if (!value || *value == wanted) return {};
  return refuse(block, fmt::format("{} \"{}\" is not supported, only \"{}\"", key, *value, wanted));
}

Result<int32_t> parse_group(const JsonValue& group, std::string_view outer_format) {
  TRY_ASSIGN(const std::optional<std::string_view> format, group.find_string("format"));
  if (format.value_or(outer_format) != "pack-quantized")
    return refuse(group, fmt::format("format \"{}\" is not supported", format.value_or(outer_format)));
  const std::optional<JsonValue> activations = group.find("input_activations");
  if (activations && !activations->is_null()) return refuse(*activations, "quantised activations are not supported");
  TRY_ASSIGN(const JsonValue weights, group.get("weights"));
  TRY(weights.members());
  TRY(want(weights, "type", "int"));
  TRY_ASSIGN(const int64_t bits, weights.get_int("num_bits", 1, 64));
  if (bits != 4) return refuse(weights, fmt::format("num_bits {} is not supported, only 4", bits));
  TRY_ASSIGN(const bool symmetric, weights.get_bool("symmetric"));
  if (!symmetric) return refuse(weights, "asymmetric quantisation is not supported");
  TRY(want(weights, "strategy", "group"));
  const std::optional<JsonValue> order = weights.find("actorder");
  if (order && !order->is_null() && !(order->is_bool() && !*order->as_bool()))
    return refuse(*order, "activation order is not supported");
  TRY_ASSIGN(const int64_t size, weights.get_int("group_size", 8, 1 << 20));
  if (size % 8 != 0)
    return weights.error(Code::kUnsupported,
                         fmt::format("group_size {} is not a multiple of 8, the values of a packed word", size));
  return static_cast<int32_t>(size);
}

}  // namespace

Result<int32_t> parse_int4_group_size(const JsonValue& block) {
  TRY(block.members());
  TRY_ASSIGN(const std::string_view method, block.get_string("quant_method"));
  if (method == "fp8") return refuse(block, "FP8 block checkpoints (quant_method \"fp8\") are not supported");
  if (method != "compressed-tensors") return refuse(block, fmt::format("quant_method \"{}\" is not supported", method));
  TRY_ASSIGN(const std::optional<std::string_view> format, block.find_string("format"));
  TRY_ASSIGN(const JsonValue groups, block.get("config_groups"));
  TRY_ASSIGN(const JsonMembers members, groups.members());
  std::optional<int32_t> size;
  for (const auto [name, group] : members) {
    TRY_ASSIGN(const int32_t group_size, parse_group(group, format.value_or("")));
    if (size && *size != group_size) return refuse(group, "a second group size in one checkpoint is not supported");
    size = group_size;
  }
  if (!size) return groups.error(Code::kInvalidArgument, "is empty");
  return *size;
}

}  // namespace ddtree
