// Input: tiktoken.model, tokenizer_config.json and a text, with a zero byte between. A model that begins with '+' gets
// the 256 single bytes put before it, so that small inputs can be whole vocabularies.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/utf8.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace {

using namespace ddtree;

std::string_view take_section(std::string_view& input) {
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view section = input.substr(0, end);
  input.remove_prefix(std::min(end + 1, input.size()));
  return section;
}

std::string single_bytes() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string file;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string base64 = {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    file += base64 + " " + std::to_string(byte) + "\n";
  }
  return file;
}

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  const auto plain = tokenizer.encode(text);
  const auto special = tokenizer.encode_with_special(text);
  CHECK_EQ(plain.ok(), !find_invalid_utf8(text).has_value());
  CHECK_EQ(special.ok(), plain.ok());
  if (!plain.ok()) return;
  CHECK_EQ(tokenizer.decode(*plain), text);
  CHECK_EQ(tokenizer.decode(*special), text);

  const auto stops = StopStrings::create({std::string(text.substr(0, text.find(' ')))});
  if (!stops.ok()) return;
  StopMatcher matcher(*stops);
  Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const int32_t id : *special) streamed += matcher.push(detokenizer.push(id));
  streamed += matcher.finish(detokenizer.finish());
  CHECK_EQ(streamed, "");  // the text begins with the stop
  CHECK(matcher.hit());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string kSingleBytes = single_bytes();
  std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string model(take_section(input));
  if (model.starts_with('+')) model = kSingleBytes + model.substr(1);
  const std::string_view config = take_section(input);
  const int32_t vocab_size = input.empty() ? 0 : static_cast<int32_t>(input.size() % 3 * 300);
  const auto tokenizer = Tokenizer::parse(model, config, vocab_size);
  if (!tokenizer.ok()) return 0;
  check_text(*tokenizer, input);
  for (int32_t id = -1; id <= tokenizer->vocab_size(); ++id) tokenizer->token_bytes(id);
  // Ids in any order: the pieces make up the repaired bytes.
  std::vector<int32_t> ids;
  for (const char c : input) ids.push_back(static_cast<uint8_t>(c) * 7 % (tokenizer->vocab_size() + 1));
  Detokenizer detokenizer(*tokenizer);
  std::string streamed, expected;
  for (const int32_t id : ids) streamed += detokenizer.push(id);
  streamed += detokenizer.finish();
  const std::string bytes = tokenizer->decode(ids);
  if (repair_utf8(bytes, expected) < bytes.size()) expected += kReplacementCharacter;
  CHECK_EQ(streamed, expected);
  return 0;
}
