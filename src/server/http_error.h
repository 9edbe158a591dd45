// Errors as OpenAI's clients expect them: {"error":{"message","type","param","code"}}.
#pragma once

#include <string>
#include <string_view>

#include "server/http.h"

namespace ddtree {

struct HttpError {
  int status = 400;
  std::string code;     // short and stable: clients test it
  std::string message;  // for people; no paths, no other requests' text
  std::string param;    // the field at fault; empty: none
};

std::string_view error_type(int status);  // "invalid_request_error", …
std::string error_json(const HttpError& error);

// Also says when to try again, with 429 and 503.
void send_error(HttpReply& reply, const HttpError& error);

}  // namespace ddtree
