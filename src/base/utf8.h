// UTF-8 as Unicode defines it: no surrogates, no overlong forms, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddtree {

// What stands at the start of some bytes. An invalid one is a "maximal subpart" of Unicode chapter 3: the bytes that
// Python's errors="replace" and browsers turn into one U+FFFD.
struct Utf8Char {
  int32_t code_point;  // -1: invalid
  int length;          // bytes, at least 1
  bool truncated;      // invalid only because the bytes end here; more of them could complete it
};

// `bytes` must not be empty.
Utf8Char read_utf8(std::string_view bytes);

// Offset of the first byte that is not part of valid UTF-8.
std::optional<size_t> find_invalid_utf8(std::string_view bytes);

// Appends `bytes` to `out` with U+FFFD for each maximal subpart, and returns how many bytes that took: all but a
// truncated character (at most 3 bytes) at the end.
size_t repair_utf8(std::string_view bytes, std::string& out);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";

}  // namespace ddtree
