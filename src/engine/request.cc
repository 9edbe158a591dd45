#include "engine/request.h"

namespace ddtree {
namespace {

constexpr std::array<std::string_view, 4> kModes = {"off", "chain", "tree", "auto"};
constexpr std::array<std::string_view, 5> kReasons = {"none", "stop", "length", "cancelled", "error"};

}  // namespace

std::string_view spec_mode_name(SpecMode mode) { return kModes[static_cast<size_t>(mode)]; }

std::optional<SpecMode> spec_mode_from_name(std::string_view name) {
  for (size_t i = 0; i < kModes.size(); ++i)
    if (kModes[i] == name) return static_cast<SpecMode>(i);
  return std::nullopt;
}

std::string_view finish_reason_name(FinishReason reason) { return kReasons[static_cast<size_t>(reason)]; }

}  // namespace ddtree
