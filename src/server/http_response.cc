#include "server/http_response.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <random>

#include <fmt/format.h>

#include "base/check.h"

namespace ddtree {
namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return "Status";
  }
}

std::string date() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  std::array<char, 40> text;
  return {text.data(), std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

void put(std::string& out, std::string_view name, std::string_view value) {
  CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == value.npos);
  out.append(name).append(": ").append(value).append("\r\n");
}

}  // namespace

std::string response_head(const ResponseHead& head, std::string_view request_id, const HttpHeaders& headers,
                          const HttpHeaders& more) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", head.status, reason(head.status));
  put(out, "Date", date());
  if (!head.content_type.empty()) put(out, "Content-Type", head.content_type);
  if (head.content_length) put(out, "Content-Length", std::to_string(*head.content_length));
  if (head.chunked) put(out, "Transfer-Encoding", "chunked");
  put(out, "X-Content-Type-Options", "nosniff");
  put(out, "X-Request-Id", request_id);
  for (const HttpHeaders* list : {&headers, &more})
    for (const auto& [name, value] : *list) put(out, name, value);
  if (head.close) {
    put(out, "Connection", "close");
  } else if (head.http_1_0) {
    put(out, "Connection", "keep-alive");
  }
  return out += "\r\n";
}

std::string chunk(std::string_view data) {
  return data.empty() ? std::string() : fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

std::string request_id(const std::string* sent) {
  constexpr size_t kMaxLength = 128, kLength = 22;
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  if (sent != nullptr && !sent->empty() && sent->size() <= kMaxLength &&
      std::all_of(sent->begin(), sent->end(), visible))
    return *sent;
  thread_local std::mt19937_64 generator{std::random_device{}()};
  std::string id = "req-";
  for (size_t i = 0; i < kLength; ++i) id += kAlphabet[generator() % kAlphabet.size()];
  return id;
}

}  // namespace ddtree
