#include "server/http_parser.h"

#include <algorithm>
#include <charconv>

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace ddtree {
namespace {

namespace http = boost::beast::http;

std::string lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  return out;
}

// What is left of a chunked body always ends in `0 CR LF CR LF`, and Beast insists on as much where it resumes.
constexpr size_t kLeastChunked = 5;

std::string_view view(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace

struct HttpParser::Impl {
  http::request_parser<http::string_body> parser;
};

HttpParser::HttpParser(const HttpLimits& limits) : limits_(limits) {}
HttpParser::~HttpParser() = default;

size_t HttpParser::feed(std::string_view bytes) {
  switch (state_) {
    case State::kHead: return feed_head(bytes);
    case State::kBody: return feed_body(bytes);
    case State::kDone:
    case State::kBad: break;
  }
  return 0;
}

// Every byte is looked at once. A line ends in CR LF and neither stands anywhere else, so the first violation ends it:
// a client that ends lines otherwise would wait for us for ever.
size_t HttpParser::feed_head(std::string_view bytes) {
  size_t used = 0;
  while (used < bytes.size()) {
    const char c = bytes[used++];
    const bool after_cr = head_.ends_with('\r');
    if (c == '\0' || (c == '\n') != after_cr || head_.size() + 1 > limits_.head_bytes) {
      const bool too_long = head_.size() + 1 > limits_.head_bytes;
      if (!too_long) {
        fail(400, "bad_request", "a line of the head does not end in CR LF, or has a NUL in it");
      } else if (head_.find('\n') == head_.npos) {
        fail(414, "uri_too_long", "the request line is longer than " + std::to_string(limits_.head_bytes) + " bytes");
      } else {
        fail(431, "headers_too_large", "the headers are longer than " + std::to_string(limits_.head_bytes) + " bytes");
      }
      return used;
    }
    head_ += c;
    if (c == '\n' && head_.ends_with("\r\n\r\n")) {
      end_head();
      return used;
    }
  }
  return used;
}

void HttpParser::end_head() {
  if (std::optional<HttpError> refusal = check_head(head_, limits_)) {
    error_ = *std::move(refusal);
    state_ = State::kBad;
    return;
  }
  impl_ = std::make_unique<Impl>();
  auto& parser = impl_->parser;
  parser.header_limit(static_cast<uint32_t>(limits_.head_bytes + 1));
  parser.body_limit(boost::none);  // the head is judged first; then the limit is set
  boost::system::error_code error;
  parser.put(boost::asio::buffer(head_), error);
  if ((error && error != http::error::need_more) || !parser.is_header_done() || !read_fields()) {
    fail(400, "bad_request", "the head of the request is malformed");
    return;
  }
  head_ = {};
  parser.eager(true);
  parser.body_limit(limits_.body_bytes);
  state_ = has_body() ? State::kBody : State::kDone;
}

bool HttpParser::read_fields() {
  const auto& parser = impl_->parser;
  const auto& message = parser.get();
  request_.method = view(message.method_string());
  const std::string_view target = view(message.target());
  const size_t question = target.find('?');
  request_.path = target.substr(0, question);
  if (question != target.npos) request_.query = target.substr(question + 1);
  for (const auto& field : message)
    request_.headers.emplace_back(lower_case(view(field.name_string())), std::string(view(field.value())));
  chunked_ = parser.chunked();
  http_1_0_ = message.version() == 10;
  keep_alive_ = message.keep_alive();
  expects_continue_ = !http_1_0_ && request_.header("expect") != nullptr;
  if (const std::string* length = request_.header("content-length")) {
    uint64_t bytes = 0;
    const auto [end, problem] = std::from_chars(length->data(), length->data() + length->size(), bytes);
    if (problem != std::errc() || end != length->data() + length->size()) return false;
    content_length_ = bytes;
  }
  return chunked_ == (request_.header("transfer-encoding") != nullptr);
}

size_t HttpParser::feed_body(std::string_view bytes) {
  auto& parser = impl_->parser;
  size_t used = 0;
  if (content_length() > limits_.body_bytes) {
    fail(413, "body_too_large", "the body is longer than " + std::to_string(limits_.body_bytes) + " bytes");
    return used;
  }
  while (!parser.is_done() && used < bytes.size()) {
    if (chunked_ && bytes.size() - used < kLeastChunked) break;
    boost::system::error_code error;
    const size_t taken = parser.put(boost::asio::buffer(bytes.data() + used, bytes.size() - used), error);
    used += taken;
    if (error == http::error::body_limit) {
      fail(413, "body_too_large", "the body is longer than " + std::to_string(limits_.body_bytes) + " bytes");
      return used;
    }
    if (error && error != http::error::need_more) {
      fail(400, "bad_request", "the body is not what its headers say");
      return used;
    }
    if (taken == 0) break;
  }
  if (parser.is_done()) {
    state_ = State::kDone;
  } else if (bytes.size() - used > limits_.chunk_line) {
    fail(400, "bad_request",
         "a chunk's size line or trailer is longer than " + std::to_string(limits_.chunk_line) + " bytes");
  }
  return used;
}

HttpRequest HttpParser::take() {
  CHECK(state_ == State::kDone);
  if (impl_) request_.body = std::move(impl_->parser.get().body());
  return std::move(request_);
}

void HttpParser::fail(int status, std::string code, std::string message) {
  error_ = {status, std::move(code), std::move(message), ""};
  state_ = State::kBad;
}

const std::string* HttpRequest::header(std::string_view lower_case_name) const {
  const auto found =
      std::find_if(headers.begin(), headers.end(), [&](const auto& header) { return header.first == lower_case_name; });
  return found == headers.end() ? nullptr : &found->second;
}

}  // namespace ddtree
