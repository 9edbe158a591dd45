#include "server/http_error.h"

#include <utility>

#include "base/json_writer.h"

namespace ddtree {

std::string_view error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

std::string error_json(const HttpError& error) {
  JsonWriter out;
  out.begin_object().key("error").begin_object();
  out.member("message", error.message).member("type", error_type(error.status));
  error.param.empty() ? out.key("param").null() : out.member("param", error.param);
  error.code.empty() ? out.key("code").null() : out.member("code", error.code);
  out.end_object().end_object();
  return std::move(out).text();
}

void send_error(HttpReply& reply, const HttpError& error) {
  HttpHeaders headers;
  if (error.status == 429 || error.status == 503) headers.emplace_back("Retry-After", "1");
  if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  reply.send(error.status, "application/json", error_json(error), std::move(headers));
}

}  // namespace ddtree
