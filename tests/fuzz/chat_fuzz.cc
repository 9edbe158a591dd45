// Input: a byte that picks the family and options, then a request's JSON; its bytes are also a reply's ids.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "text/chat.h"
#include "text/chat_prompt.h"
#include "text/tokenizer.h"
#include "text/tool_parser.h"

namespace {

using namespace ddtree;

constexpr int kFamilies = 6;

std::string single_bytes() {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string file;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string base64 = {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    file += base64 + " " + std::to_string(byte) + "\n";
  }
  return file;
}

// The bytes, and the family's control tokens from 256 on.
Tokenizer tokenizer_of(ChatFamily family) {
  std::string added;
  int id = 256;
  for (const std::string_view marker : chat_markers(family)) {
    if (!added.empty()) added += ", ";
    added += '"' + std::to_string(id++) + R"(": {"content": ")" + std::string(marker) + "\"}";
  }
  return *Tokenizer::parse(single_bytes(),
                           R"({"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": {)" + added + "}}");
}

void check_prompt(const ChatRenderer& renderer, const Tokenizer& tokenizer, std::string_view request, uint8_t choice) {
  const Result<JsonDocument> document = parse_json(request, "request", {.max_bytes = 1 << 16, .max_depth = 32});
  if (!document.ok()) return;
  const std::optional<JsonValue> tools = document->root().find("tools");
  const Result<JsonValue> messages = document->root().get("messages");
  if (!messages.ok()) return;
  const Result<Chat> chat = parse_chat(*messages, tools ? &*tools : nullptr);
  if (!chat.ok()) return;
  ChatOptions options{.add_generation_prompt = (choice & 1) != 0, .continue_final_message = (choice & 2) != 0};
  if (choice & 4) options.thinking = (choice & 8) != 0;
  const Result<ChatPrompt> prompt = renderer.render(*chat, options);
  if (!prompt.ok()) return;
  CHECK(!prompt->ids.empty());
  size_t bytes = 0;
  for (const int32_t id : prompt->ids) {
    CHECK(id >= 0 && id < tokenizer.vocab_size());
    bytes += tokenizer.token_bytes(id).size();
  }
  CHECK_LE(bytes, 2000 + 64 * request.size());  // linear: a template's words are short
}

struct Texts {
  std::string reasoning, content, calls;
  bool operator==(const Texts&) const = default;
  void add(const std::vector<ReplyEvent>& events) {
    for (const ReplyEvent& event : events) {
      CHECK(event.call >= -1);
      if (event.kind == ReplyEvent::Kind::kReasoning)
        reasoning += event.text;
      else if (event.kind == ReplyEvent::Kind::kContent)
        content += event.text;
      else if (event.kind == ReplyEvent::Kind::kArguments)
        calls += event.text;
      else
        calls += '\0' + event.name + '\0' + event.text + '\0';
    }
  }
};

Texts parse_reply(const Tokenizer& tokenizer, ChatFamily family, std::span<const int32_t> ids, size_t step,
                  bool tools) {
  ReplyOptions options{.in_reasoning = step % 2 == 0};
  if (tools) options.tools = {"a", "b"};
  ReplyParser parser(tokenizer, family, options);
  Texts texts;
  for (; !ids.empty(); ids = ids.subspan(std::min(step, ids.size())))
    texts.add(parser.push(ids.first(std::min(step, ids.size()))));
  texts.add(parser.finish());
  return texts;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<Tokenizer> kTokenizers = [] {
    std::vector<Tokenizer> all;
    for (int family = 0; family < kFamilies; ++family) all.push_back(tokenizer_of(static_cast<ChatFamily>(family)));
    return all;
  }();
  if (size == 0) return 0;
  const auto family = static_cast<ChatFamily>(data[0] % kFamilies);
  const uint8_t choice = data[0] / kFamilies;
  const Tokenizer& tokenizer = kTokenizers[static_cast<size_t>(family)];
  const std::string_view request(reinterpret_cast<const char*>(data + 1), size - 1);
  check_prompt(*ChatRenderer::create(tokenizer, family), tokenizer, request, choice);

  std::vector<int32_t> ids;
  for (const char c : request) ids.push_back(c >= 'A' && c < 'P' ? 256 + c - 'A' : static_cast<uint8_t>(c));
  const bool tools = (choice & 1) != 0;
  CHECK(parse_reply(tokenizer, family, ids, 1, tools) == parse_reply(tokenizer, family, ids, 3, tools));
  CHECK(parse_reply(tokenizer, family, ids, 2, tools) == parse_reply(tokenizer, family, ids, 1000, tools));
  return 0;
}
