// HttpParser: bytes to one request, within limits, with nothing of sockets in it. Stricter than the standard demands
// where peers and proxies have disagreed: no bare CR or LF, no folded lines, one length only, nothing but `chunked`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/http.h"
#include "server/http_error.h"

namespace ddtree {

class HttpParser {
 public:
  enum class State : uint8_t {
    kHead,  // reads the request line and headers
    kBody,  // the head is there, the body is not
    kDone,
    kBad,  // error() says why; the connection cannot go on
  };

  explicit HttpParser(const HttpLimits& limits);
  ~HttpParser();

  // Takes from the front of `bytes` and says how many. It stops behind the head, so that it can be judged before
  // anything of the body is read, and behind the request. Bytes that it left must be there again at the next call.
  size_t feed(std::string_view bytes);

  State state() const { return state_; }
  const HttpError& error() const { return error_; }

  // From kBody on.
  const HttpRequest& head() const { return request_; }  // without the body
  bool http_1_0() const { return http_1_0_; }
  bool keep_alive() const { return keep_alive_; }
  bool has_body() const { return chunked_ || content_length_.value_or(0) > 0; }
  bool states_length() const { return chunked_ || content_length_.has_value(); }
  uint64_t content_length() const { return content_length_.value_or(0); }
  bool expects_continue() const { return expects_continue_; }

  HttpRequest take();  // in kDone, once

 private:
  struct Impl;

  size_t feed_head(std::string_view bytes);
  size_t feed_body(std::string_view bytes);
  void end_head();
  bool read_fields();
  void fail(int status, std::string code, std::string message);

  HttpLimits limits_;
  State state_ = State::kHead;
  std::unique_ptr<Impl> impl_;
  std::string head_;  // raw, until it is complete
  HttpRequest request_;
  std::optional<uint64_t> content_length_;
  bool chunked_ = false, keep_alive_ = false, http_1_0_ = false, expects_continue_ = false;
  HttpError error_;
};

// Why a complete head, with its final empty line, is refused; nullopt: it is not.
std::optional<HttpError> check_head(std::string_view head, const HttpLimits& limits);

}  // namespace ddtree
