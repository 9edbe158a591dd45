#include "backend/backend.h"

namespace ddtree {

std::string_view phase_name(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kNames = {"embed", "attention", "dense",  "experts", "head",
                                                            "draft", "tree",      "sample", "commit",  "host"};
  return kNames[static_cast<size_t>(phase)];
}

}  // namespace ddtree
