// API keys.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddtree {

class ApiKeys {
 public:
  static constexpr size_t kMaxLength = 256;
  static constexpr size_t kMaxKeys = 1024;

  // A key is 1 to kMaxLength visible ASCII characters. `name` begins the messages, which never show a key.
  Status add(std::string_view key, std::string_view name);
  // One key a line; empty lines and lines that begin with # are skipped. There must be one.
  Status add_file(const std::string& path);

  bool empty() const { return keys_.empty(); }
  // The time this takes tells nothing about the keys but their number.
  bool accepts(std::string_view key) const;

 private:
  using Padded = std::array<unsigned char, kMaxLength>;
  static Padded pad(std::string_view key);
  std::vector<Padded> keys_;  // ended by zeros, which no key contains
};

// The key in a value of Authorization ("Bearer …"); empty: none.
std::string_view bearer_key(std::string_view authorization);

}  // namespace ddtree
