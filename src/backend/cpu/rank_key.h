// A value and its index as one number. Larger numbers come first: values descending, equal ones by ascending index,
// NaN last.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace ddtree::cpu {

inline constexpr uint32_t kSignBit = 0x80000000u;

inline uint64_t rank_key(float v, int32_t index) {
  const uint32_t bits = std::bit_cast<uint32_t>(v + 0.0f);  // −0 as +0
  const uint32_t order = std::isnan(v) ? 0 : (bits & kSignBit) != 0 ? ~bits : bits | kSignBit;
  return static_cast<uint64_t>(order) << 32 | ~static_cast<uint32_t>(index);
}

inline int32_t rank_index(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

inline float rank_value(uint64_t key) {
  const auto order = static_cast<uint32_t>(key >> 32);
  if (order == 0) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>((order & kSignBit) != 0 ? order & ~kSignBit : ~order);
}

}  // namespace ddtree::cpu
