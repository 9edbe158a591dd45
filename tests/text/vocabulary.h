// Makes tokenizer files in memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddtree {

inline std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < n ? static_cast<uint8_t>(bytes[i + k]) : 0);
    for (size_t k = 0; k < 4; ++k) out += k <= n ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

inline std::vector<std::string> all_bytes() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(std::string(1, static_cast<char>(byte)));
  return tokens;
}

// tiktoken.model with these tokens, by rank.
inline std::string model_file(const std::vector<std::string>& tokens) {
  std::string file;
  for (size_t rank = 0; rank < tokens.size(); ++rank) file += base64(tokens[rank]) + " " + std::to_string(rank) + "\n";
  return file;
}

// … with the 256 bytes first.
inline std::string model_file_after_bytes(const std::vector<std::string>& more) {
  std::vector<std::string> tokens = all_bytes();
  tokens.insert(tokens.end(), more.begin(), more.end());
  return model_file(tokens);
}

// tokenizer_config.json with these members of added_tokens_decoder, and perhaps more members of the file.
inline std::string config_file(const std::string& added, const std::string& more = "") {
  return R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {)" + added + "}" + more + "}";
}

}  // namespace ddtree
