#include "server/auth.h"

#include <algorithm>
#include <fstream>
#include <iterator>

namespace ddtree {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;

bool is_visible(char c) { return c > ' ' && c <= '~'; }

}  // namespace

Status ApiKeys::add(std::string_view key, std::string_view name) {
  const std::string prefix = std::string(name) + ": ";
  if (key.empty() || key.size() > kMaxLength)
    return Error{Code::kInvalidArgument, prefix + "a key of " + std::to_string(key.size()) + " characters; give 1 to " +
                                             std::to_string(kMaxLength)};
  if (!std::all_of(key.begin(), key.end(), is_visible))
    return Error{Code::kInvalidArgument, prefix + "a key consists of visible ASCII characters, without spaces"};
  if (keys_.size() >= kMaxKeys)
    return Error{Code::kInvalidArgument, prefix + "more than " + std::to_string(kMaxKeys) + " keys"};
  keys_.push_back(pad(key));
  return {};
}

Status ApiKeys::add_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Code::kNotFound, path + ": cannot be read"};
  std::string line;
  const size_t before = keys_.size();
  for (size_t number = 1, bytes = 0; std::getline(file, line); ++number) {
    bytes += line.size() + 1;
    if (bytes > kMaxFileBytes)
      return Error{Code::kInvalidArgument, path + ": longer than " + std::to_string(kMaxFileBytes) + " bytes"};
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || line.starts_with('#')) continue;
    TRY(add(line, path + ":" + std::to_string(number)));
  }
  if (keys_.size() == before) return Error{Code::kInvalidArgument, path + ": no key in it; give one a line"};
  return {};
}

ApiKeys::Padded ApiKeys::pad(std::string_view key) {
  Padded padded = {};
  std::copy(key.begin(), key.end(), padded.begin());
  return padded;
}

// Every byte of every key is looked at, whatever it is. What is longer than a key can be matches none.
bool ApiKeys::accepts(std::string_view key) const {
  const bool possible = !key.empty() && key.size() <= kMaxLength && key.find('\0') == key.npos;
  const Padded given = pad(possible ? key : std::string_view());
  unsigned found = 0;
  for (const Padded& known : keys_) {
    unsigned different = 0;
    for (size_t i = 0; i < kMaxLength; ++i) different |= static_cast<unsigned>(known[i] ^ given[i]);
    found |= static_cast<unsigned>(different == 0);
  }
  return possible && found != 0;
}

std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  if (authorization.size() < kScheme.size()) return {};
  for (size_t i = 0; i < kScheme.size(); ++i) {
    const char c = authorization[i];
    if ((c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c) != kScheme[i]) return {};
  }
  authorization.remove_prefix(kScheme.size());
  while (authorization.starts_with(' ')) authorization.remove_prefix(1);
  return authorization;
}

}  // namespace ddtree
