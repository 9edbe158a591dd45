// Conversations and the vocabularies that they are rendered with.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "fixture.h"
#include "text/chat.h"
#include "vocabulary.h"

namespace ddtree {

// A request with its document, into which the conversation has views.
class ParsedChat {
 public:
  explicit ParsedChat(std::string_view request) : document_(*parse_json(request, "request")) {
    const JsonValue root = document_.root();
    const std::optional<JsonValue> tools = root.find("tools");
    Result<Chat> parsed = parse_chat(*root.get("messages"), tools ? &*tools : nullptr);
    if (!parsed.ok()) throw std::runtime_error(parsed.error().message);
    chat = *std::move(parsed);
  }

 private:
  JsonDocument document_;

 public:
  Chat chat;
};

// What parse_chat says to a wrong request; empty where it takes it.
inline std::string chat_error(std::string_view request, const ChatLimits& limits = {}) {
  const JsonDocument document = *parse_json(request, "request", {.max_depth = 1000});
  const std::optional<JsonValue> tools = document.root().find("tools");
  const Result<Chat> chat = parse_chat(*document.root().get("messages"), tools ? &*tools : nullptr, limits);
  return chat.ok() ? "" : chat.error().message;
}

// The small vocabulary's ranks, with these control tokens after them. As in published vocabularies, those of thinking
// and calls, which have no bar, are not special.
inline Tokenizer tokenizer_with(const std::vector<std::string>& added) {
  std::string members;
  for (size_t i = 0; i < added.size(); ++i) {
    const bool special = added[i].starts_with("<|") || added[i].starts_with("<｜");
    members += (i ? ", \"" : "\"") + std::to_string(16000 + i) + R"(": {"content": ")" + added[i] +
               R"(", "special": )" + (special ? "true}" : "false}");
  }
  return *Tokenizer::parse(read_file(kSmallVocabulary + "/tiktoken.model"), config_file(members));
}

}  // namespace ddtree
