// Input: a byte that picks the endpoint, then a request's body.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "base/json.h"
#include "server/api_error.h"
#include "server/openai_request.h"

namespace {

using namespace ddtree;

const ApiLimits kLimits;

// What a client is told is JSON, with a status for mistakes of clients.
void check_error(const Error& error) {
  const HttpError told = request_error(error);
  CHECK(told.status == 400 || told.status == 404);
  CHECK(parse_json(error_json(told), "error").ok());
}

void check_options(const GenerationOptions& options) {
  CHECK(options.n >= 1 && options.n <= kLimits.choices);
  CHECK(!options.max_tokens || *options.max_tokens >= 1);
  CHECK(options.sampling.min_tokens >= 0);
  CHECK(options.stop.size() <= static_cast<size_t>(kLimits.stop_strings));
  for (const std::string& stop : options.stop) CHECK(!stop.empty() && stop.size() <= kLimits.stop_bytes);
  CHECK(options.sampling.logprobs >= -1 && options.sampling.logprobs <= kLimits.top_logprobs);
  CHECK(options.sampling.temperature >= 0 && options.sampling.temperature <= 2);
  CHECK(options.sampling.logit_bias.size() <= static_cast<size_t>(kLimits.logit_bias));
  CHECK(options.spec.budget >= 0 && options.spec.budget <= kMaxNodes);
  CHECK(options.request_id.size() <= 128);
}

void check_completion(const CompletionRequest& request) {
  check_options(request.options);
  CHECK(!request.prompts.empty() && request.prompts.size() <= static_cast<size_t>(kLimits.prompts));
}

void check_chat(const ChatRequest& request) {
  check_options(request.options);
  CHECK(!request.chat.messages.empty());
  CHECK(!(request.prompt.add_generation_prompt && request.prompt.continue_final_message));
}

template <class T, class Check>
void check(const Result<T>& request, Check check_request) {
  if (request.ok())
    check_request(*request);
  else
    check_error(request.error());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 4) {
    case 0: check(parse_completion_request(body, kLimits, {}), check_completion); break;
    case 1: check(parse_chat_request(body, kLimits, {}), check_chat); break;
    case 2: check(parse_tokenize_request(body, kLimits), [](const TokenizeRequest&) {}); break;
    default: check(parse_detokenize_request(body, kLimits), [](const DetokenizeRequest&) {}); break;
  }
  return 0;
}
