// Requests of the OpenAI-compatible API: JSON in, checked structs out. Every field has one of four verdicts:
// implemented; known, but accepted with its default value only (kUnsupported otherwise); refused always, because it
// would carry code, tensors or templates; unknown, and ignored. docs/serving.md lists them.
//
// Messages begin with the field's path; api_error.h makes the error's `param` of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "engine/request.h"
#include "server/limits.h"
#include "text/chat.h"

namespace ddtree {

// What a request gets that does not say otherwise.
struct RequestDefaults {
  float temperature = 1;
  float top_p = 1;
  SpecOptions spec;
  bool timings = false;
};

// The fields of both endpoints.
struct GenerationOptions {
  std::string model;  // empty: whatever is served
  SamplingParams sampling;
  bool has_seed = false;
  std::optional<int32_t> max_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop = false;  // the text keeps the stop string, or the token, that ended it
  bool skip_special_tokens = true;
  int32_t n = 1;
  bool stream = false, include_usage = false, continuous_usage = false;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  // in log-probabilities "token_id:42" stands for the token's text
  bool timings = false;
  SpecOptions spec;
  std::string cache_salt;
  std::string request_id;
};

struct CompletionRequest {
  GenerationOptions options;
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;
  bool echo = false;
  bool add_special_tokens = false;  // texts begin with the model's beginning-of-text token
};

struct ToolChoice {
  enum class Kind : uint8_t { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name;  // of kNamed
};

struct ChatRequest {
  explicit ChatRequest(JsonDocument json) : document(std::move(json)) {}

  GenerationOptions options;
  Chat chat;
  ChatOptions prompt;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  JsonDocument document;  // `chat` has views into it
};

struct TokenizeRequest {
  explicit TokenizeRequest(JsonDocument json) : document(std::move(json)) {}

  std::string model;
  std::optional<std::string> text;  // or else a conversation:
  Chat chat;
  ChatOptions prompt;
  bool add_special_tokens = false;
  bool return_token_strs = false;
  JsonDocument document;  // `chat` has views into it
};

struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

Result<CompletionRequest> parse_completion_request(std::string_view body, const ApiLimits& limits,
                                                   const RequestDefaults& defaults);
Result<ChatRequest> parse_chat_request(std::string_view body, const ApiLimits& limits, const RequestDefaults& defaults);
Result<TokenizeRequest> parse_tokenize_request(std::string_view body, const ApiLimits& limits);
Result<DetokenizeRequest> parse_detokenize_request(std::string_view body, const ApiLimits& limits);

}  // namespace ddtree
