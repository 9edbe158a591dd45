// What the parsers of config.json files share: limits that no published model comes near, and fields with several
// spellings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/json.h"

namespace ddtree {

inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadDim = 4096;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxExperts = 16384;
inline constexpr int64_t kMaxPositions = int64_t{1} << 24;

// "a, b and c"
std::string join(std::span<const std::string_view> names);

// architectures[0], or "" where the field is absent.
Result<std::string> find_architecture(const JsonValue& config);

// 2 … kMaxVocab: sampling rows can be no longer, and a choice needs two tokens.
Result<int64_t> parse_vocab_size(const JsonValue& config);

// Refuses a member that is there with another value than the one this build implements.
Status require_flag(const JsonValue& config, std::string_view key, bool wanted);
Status require_name(const JsonValue& config, std::string_view key, std::string_view wanted);

// dtype or torch_dtype of the inner object, else of the outer one; bfloat16 where neither says.
Result<DType> parse_dtype(const JsonValue& outer, const JsonValue& inner);

// A token id or a list of them, appended; nothing where absent or null.
Status add_token_ids(const JsonValue& config, std::string_view key, int64_t vocab_size, std::vector<int32_t>* ids);

// Puts the directory in front of the message.
template <class T>
Result<T> in_dir(const std::string& dir, Result<T> result) {
  if (result.ok()) return result;
  return Error{result.error().code, dir + "/" + result.error().message};
}

}  // namespace ddtree
