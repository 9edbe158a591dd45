#include "base/utf8.h"

#include <cstring>

namespace ddtree {
namespace {

// What a lead byte promises: how many bytes, and the range of the second one, which is where overlong forms, surrogates
// and values above U+10FFFF show.
struct Lead {
  int length;  // 0: no lead byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xbf;
};

Lead classify(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xc2) return {0};
  if (byte < 0xe0) return {2};
  if (byte == 0xe0) return {3, 0xa0, 0xbf};
  if (byte == 0xed) return {3, 0x80, 0x9f};
  if (byte < 0xf0) return {3};
  if (byte == 0xf0) return {4, 0x90, 0xbf};
  if (byte < 0xf4) return {4};
  if (byte == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

// Length of the ASCII prefix, eight bytes at a time.
size_t ascii_prefix(std::string_view bytes) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < bytes.size() && static_cast<uint8_t>(bytes[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Char read_utf8(std::string_view bytes) {
  const uint8_t first = static_cast<uint8_t>(bytes[0]);
  const Lead lead = classify(first);
  if (lead.length == 0) return {-1, 1, false};
  if (lead.length == 1) return {first, 1, false};
  int32_t code_point = first & (0x7f >> lead.length);
  for (int i = 1; i < lead.length; ++i) {
    if (static_cast<size_t>(i) == bytes.size()) return {-1, i, true};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xbf;
    if (byte < min || byte > max) return {-1, i, false};
    code_point = (code_point << 6) | (byte & 0x3f);
  }
  return {code_point, lead.length, false};
}

std::optional<size_t> find_invalid_utf8(std::string_view bytes) {
  size_t at = 0;
  while (true) {
    at += ascii_prefix(bytes.substr(at));
    if (at == bytes.size()) return std::nullopt;
    const Utf8Char c = read_utf8(bytes.substr(at));
    if (c.code_point < 0) return at;
    at += c.length;
  }
}

size_t repair_utf8(std::string_view bytes, std::string& out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Char c = read_utf8(bytes.substr(at));
    if (c.truncated) break;
    out += c.code_point < 0 ? kReplacementCharacter : bytes.substr(at, c.length);
    at += c.length;
  }
  return at;
}

}  // namespace ddtree
