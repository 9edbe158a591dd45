// check_head: the syntax of a request's head, over the raw bytes. What passes here is parsed by the HTTP library; this
// refuses what such libraries mend silently, each in its own way, because requests are smuggled through the difference.

#include <algorithm>
#include <array>

#include "server/http_parser.h"

namespace ddtree {
namespace {

using Refusal = std::optional<HttpError>;

Refusal bad(std::string message, int status = 400, std::string code = "bad_request") {
  return HttpError{status, std::move(code), std::move(message), ""};
}

bool is_token_char(char c) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || kOthers.find(c) != kOthers.npos;
}

bool is_token(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char); }

bool is_value_char(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return c == '\t' || (byte >= 0x20 && byte != 0x7f);
}

bool is_host_char(char c) {
  constexpr std::string_view kOthers = ".-_~:[]";
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || kOthers.find(c) != kOthers.npos;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

bool same_name(std::string_view a, std::string_view lower_case) {
  return std::equal(a.begin(), a.end(), lower_case.begin(), lower_case.end(),
                    [](char x, char y) { return lower(x) == y; });
}

std::string_view trim(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return text;
}

Refusal check_request_line(std::string_view line) {
  constexpr size_t kMaxMethod = 16;
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == line.npos || first == last) return bad("the request line is not METHOD TARGET VERSION");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(method) || method.size() > kMaxMethod) return bad("the method is not a token of 1 to 16 characters");
  if (version.size() == 8 && version.starts_with("HTTP/") && version != "HTTP/1.1" && version != "HTTP/1.0")
    return bad("only HTTP/1.1 and HTTP/1.0 are spoken here", 505, "http_version_not_supported");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return bad("the request line does not end in a version");
  if (target == "*" && method == "OPTIONS") return std::nullopt;
  if (!target.starts_with('/')) return bad("the request's target must begin with /");
  const auto allowed = [](char c) { return c > ' ' && c <= '~' && c != '#'; };
  if (!std::all_of(target.begin(), target.end(), allowed))
    return bad("the request's target has a character that is not allowed");
  return std::nullopt;
}

// Headers that decide where a request ends, what it is and who sends it: twice is once too often.
constexpr std::array<std::string_view, 10> kOnce = {
    "host",   "content-length", "transfer-encoding", "content-type", "content-encoding",
    "expect", "authorization",  "x-api-key",         "origin",       "x-request-id"};

struct Seen {
  std::array<bool, kOnce.size()> once = {};
  bool has(std::string_view name) const {
    return once[static_cast<size_t>(std::find(kOnce.begin(), kOnce.end(), name) - kOnce.begin())];
  }
};

Refusal check_value(std::string_view name, std::string_view value) {
  constexpr size_t kMaxDigits = 18;
  if (same_name(name, "host") && (value.empty() || !std::all_of(value.begin(), value.end(), is_host_char)))
    return bad("Host is not a name or address");
  if (same_name(name, "content-length")) {
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    if (value.empty() || !std::all_of(value.begin(), value.end(), digit)) return bad("Content-Length is not a number");
    if (value.size() > kMaxDigits) return bad("Content-Length is beyond any limit", 413, "body_too_large");
  }
  if (same_name(name, "transfer-encoding") && !same_name(value, "chunked"))
    return bad("the only Transfer-Encoding that is known here is chunked", 501, "unsupported_transfer_encoding");
  if (same_name(name, "expect") && !same_name(value, "100-continue"))
    return bad("the only Expect that is known here is 100-continue", 417, "expectation_failed");
  return std::nullopt;
}

Refusal check_field(std::string_view line, Seen& seen) {
  if (line.starts_with(' ') || line.starts_with('\t')) return bad("a header is folded over two lines");
  const size_t colon = line.find(':');
  if (colon == line.npos) return bad("a header has no colon");
  const std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
  if (!is_token(name)) return bad("a header's name is not a token");
  if (!std::all_of(value.begin(), value.end(), is_value_char)) return bad("a header's value has a control character");
  for (size_t i = 0; i < kOnce.size(); ++i) {
    if (!same_name(name, kOnce[i])) continue;
    if (seen.once[i]) return bad("the header " + std::string(kOnce[i]) + " is there more than once");
    seen.once[i] = true;
  }
  return check_value(name, value);
}

}  // namespace

std::optional<HttpError> check_head(std::string_view head, const HttpLimits& limits) {
  constexpr std::string_view kEol = "\r\n";
  const auto next_line = [&] {
    const std::string_view line = head.substr(0, head.find(kEol));
    head.remove_prefix(std::min(head.size(), line.size() + kEol.size()));
    return line;
  };
  const std::string_view request_line = next_line();
  if (Refusal refusal = check_request_line(request_line)) return refusal;
  Seen seen;
  int fields = 0;
  for (std::string_view line = next_line(); !line.empty(); line = next_line()) {
    if (++fields > limits.headers)
      return bad("more than " + std::to_string(limits.headers) + " headers", 431, "too_many_headers");
    if (Refusal refusal = check_field(line, seen)) return refusal;
  }
  const bool http_1_0 = request_line.ends_with("HTTP/1.0");
  if (!http_1_0 && !seen.has("host")) return bad("there is no Host header");
  if (seen.has("transfer-encoding") && seen.has("content-length"))
    return bad("both Transfer-Encoding and Content-Length are there");
  if (seen.has("transfer-encoding") && http_1_0) return bad("HTTP/1.0 has no Transfer-Encoding");
  return std::nullopt;
}

}  // namespace ddtree
