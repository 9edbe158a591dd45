// From our errors to what a client is told.
#pragma once

#include <string_view>

#include "base/result.h"
#include "server/http_error.h"

namespace ddtree {

inline constexpr std::string_view kRequestName = "request";  // what the parser's messages call the document

// Of a request that was not accepted. The param is the field's path that the messages of the parser and the engine
// begin with: "messages[3].role: is …".
HttpError request_error(const Error& error);

// Of a request that failed while it ran. What broke inside is for the log, not for the client.
HttpError run_error(const Error& error);

}  // namespace ddtree
