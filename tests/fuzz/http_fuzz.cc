// Any bytes as what a client sends: parsed whole and in pieces they must mean the same, stay within the limits, and be
// judged without a key as a stranger's.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http_parser.h"
#include "server/http_policy.h"

namespace ddtree {
namespace {

struct Parsed {
  HttpParser::State state = HttpParser::State::kHead;
  int status = 0;
  size_t used = 0;
  HttpRequest request;
};

HttpLimits small_limits() {
  HttpLimits limits;
  limits.head_bytes = 1024;
  limits.headers = 8;
  limits.body_bytes = 2048;
  limits.chunk_line = 256;
  return limits;
}

const HttpPolicy& policy() {
  static const HttpPolicy made = [] {
    HttpOptions options;
    options.limits = small_limits();
    options.cors_origins = {"https://a.example"};
    CHECK(options.keys.add("secret", "fuzz").ok());
    HttpPolicy policy(options, true,
                      {{"GET", "/health", true, true, nullptr}, {"POST", "/v1/x", false, false, nullptr}});
    policy.set_phase(ServerPhase::kReady);
    return policy;
  }();
  return made;
}

void check_verdict(const HttpParser& parser) {
  const Verdict verdict = policy().judge(parser);
  if (verdict.refusal) {
    CHECK_GE(verdict.refusal->status, 400);
    CHECK(verdict.route == nullptr);
  } else if (!verdict.preflight) {
    CHECK(verdict.route != nullptr);
    const std::string* key = parser.head().header("x-api-key");
    const std::string* bearer = parser.head().header("authorization");
    CHECK(verdict.route->is_public || (key && *key == "secret") || (bearer && bearer->ends_with("secret")));
  }
  for (const auto& [name, value] : verdict.headers) CHECK(value.find_first_of("\r\n") == value.npos);
}

Parsed parse(std::string_view bytes, size_t piece) {
  HttpParser parser(small_limits());
  Parsed parsed;
  std::string in;
  bool judged = false;
  for (size_t given = 0;;) {
    const size_t used = parser.feed(in);
    CHECK_LE(used, in.size());
    in.erase(0, used);
    parsed.used += used;
    parsed.state = parser.state();
    if (parsed.state == HttpParser::State::kBad || parsed.state == HttpParser::State::kDone) break;
    if (parsed.state == HttpParser::State::kBody && !judged) {
      judged = true;
      check_verdict(parser);
      continue;
    }
    if (given == bytes.size()) break;
    const std::string_view next = bytes.substr(given, piece);
    in += next;
    given += next.size();
  }
  if (parsed.state == HttpParser::State::kBad) {
    parsed.status = parser.error().status;
    CHECK_GE(parsed.status, 400);
    CHECK_LT(parsed.status, 600);
  }
  if (parsed.state == HttpParser::State::kDone) {
    check_verdict(parser);
    parsed.request = parser.take();
    CHECK_LE(parsed.request.body.size(), small_limits().body_bytes);
    CHECK_LE(parsed.request.headers.size(), 8u);
    CHECK(parsed.request.path.starts_with('/') || parsed.request.path == "*");
  }
  return parsed;
}

}  // namespace
}  // namespace ddtree

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using ddtree::HttpParser;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const ddtree::Parsed whole = ddtree::parse(bytes, bytes.size() + 1);
  const ddtree::Parsed pieces = ddtree::parse(bytes, size_t{data[0]} + 1);
  const bool refused = whole.state == HttpParser::State::kBad || pieces.state == HttpParser::State::kBad;
  if (refused) return 0;  // which of two faults is met first may depend on the pieces
  CHECK(whole.state == pieces.state);
  CHECK(whole.request.method == pieces.request.method);
  CHECK(whole.request.path == pieces.request.path);
  CHECK(whole.request.headers == pieces.request.headers);
  CHECK(whole.request.body == pieces.request.body);
  if (whole.state == HttpParser::State::kDone) CHECK_EQ(whole.used, pieces.used);
  return 0;
}
