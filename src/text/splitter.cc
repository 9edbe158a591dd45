#include "text/splitter.h"

#include <mutex>
#include <string>

#include <fmt/format.h>
#include <oniguruma.h>

#include "base/utf8.h"

namespace ddtree {
namespace {

constexpr int kMaxChunkChars = 400'000;
constexpr int kMaxRunChars = 25'000;

// Python's str.isspace(), which the reference uses to find runs: the pattern's \s and the separators U+001C…001F.
bool is_python_space(int32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

std::string onig_message(int code, OnigErrorInfo* info = nullptr) {
  OnigUChar buffer[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int length = onig_error_code_to_str(buffer, code, info);
  return std::string(reinterpret_cast<const char*>(buffer), length);
}

const OnigUChar* onig_bytes(const char* p) { return reinterpret_cast<const OnigUChar*>(p); }

struct FreeMatchParam {
  void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
};

}  // namespace

std::vector<std::string_view> cut_long_text(std::string_view text) {
  std::vector<std::string_view> chunks;
  size_t start = 0;
  int chunk_chars = 0;  // since the last multiple of kMaxChunkChars
  int run_chars = 0;
  bool run_is_space = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = read_utf8(text.substr(at));
    const bool is_space = is_python_space(c.code_point);
    const bool chunk_full = chunk_chars == kMaxChunkChars;
    if (chunk_full) chunk_chars = 0;
    run_chars = is_space != run_is_space ? 1 : run_chars + 1;
    run_is_space = is_space;
    if (chunk_full || run_chars > kMaxRunChars) {
      chunks.push_back(text.substr(start, at - start));
      start = at;
      run_chars = 1;
    }
    ++chunk_chars;
    at += c.length;
  }
  if (start < text.size()) chunks.push_back(text.substr(start));
  return chunks;
}

void Splitter::FreeRegex::operator()(re_pattern_buffer* regex) const { onig_free(regex); }

Result<Splitter> Splitter::create(std::string_view pattern, SplitLimits limits) {
  if (pattern != kKimiPattern)
    return Error{
        Code::kUnsupported,
        fmt::format("the split pattern \"{}\" is not one that this build knows (Kimi's); its tokens would differ "
                    "from those of the model",
                    pattern)};
  static std::once_flag initialized;
  std::call_once(initialized, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
  });
  OnigRegex regex = nullptr;
  OnigErrorInfo info;
  const int code = onig_new(&regex, onig_bytes(pattern.data()), onig_bytes(pattern.data() + pattern.size()),
                            ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &info);
  if (code != ONIG_NORMAL)
    return Error{Code::kUnsupported, fmt::format("Oniguruma {} does not compile the split pattern: {}", onig_version(),
                                                 onig_message(code, &info))};
  return Splitter(Regex(regex), limits);
}

Status Splitter::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const std::unique_ptr<OnigMatchParam, FreeMatchParam> param(onig_new_match_param());
  if (param == nullptr) return Error{Code::kExhausted, "out of memory while splitting text into pieces"};
  onig_initialize_match_param(param.get());
  onig_set_match_stack_limit_size_of_match_param(param.get(), limits_.stack_entries);
  onig_set_retry_limit_in_match_of_match_param(param.get(), limits_.retries);
  const OnigUChar* begin = onig_bytes(text.data());
  const OnigUChar* end = begin + text.size();
  for (size_t at = 0; at < text.size();) {
    const int length =
        onig_match_with_param(regex_.get(), begin, end, begin + at, nullptr, ONIG_OPTION_NONE, param.get());
    if (length <= 0)
      return Error{Code::kExhausted, fmt::format("the text cannot be split into pieces at byte {}: {}", at,
                                                 length == 0 ? "empty match" : onig_message(length))};
    pieces.push_back(text.substr(at, length));
    at += length;
  }
  return {};
}

}  // namespace ddtree
