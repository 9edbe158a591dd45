// The routes of the OpenAI-compatible API: completions, chat, models, tokenize and detokenize.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/http.h"
#include "server/limits.h"
#include "server/openai_request.h"
#include "server/token_source.h"
#include "server/worker.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace ddtree {

// What is served, and how. Set up once, then used by several threads; must outlive the routes and all generations.
struct ApiContext {
  ApiContext(TokenSource& tokens, const Tokenizer& text, int64_t max_choices)
      : source(tokens), tokenizer(text), admission(max_choices) {}

  TokenSource& source;
  const Tokenizer& tokenizer;
  std::optional<ChatRenderer> chat;
  std::string no_chat;  // why there is none: an operator's words, for clients

  std::vector<std::string> names = {"ddtree"};  // the served model's name, then its aliases
  std::string fingerprint;                      // build, backend, weights
  int64_t created = 0;                          // seconds since 1970: since when it is served
  int32_t max_context = 0;                      // of the engine: prompt and reply together
  std::optional<int32_t> bos_id;
  ApiLimits limits;
  RequestDefaults defaults;
  bool split_reasoning = true;  // reasoning in a field of its own, not in the content

  // The engine's queue must have room for as many as may be admitted.
  Admission admission;
  GenerationObserver* observer = nullptr;
  Worker worker{64};
};

std::vector<Route> make_api_routes(ApiContext& context);

}  // namespace ddtree
