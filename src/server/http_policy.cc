#include "server/http_policy.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ddtree {
namespace {

bool listed(const std::vector<std::string>& list, std::string_view item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

std::string lower_case(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

// "localhost:8000" -> "localhost", "[::1]:8000" -> "[::1]"
std::string_view without_port(std::string_view host) {
  const size_t bracket = host.rfind(']'), colon = host.rfind(':');
  if (colon == host.npos || (bracket != host.npos && colon < bracket)) return host;
  return host.substr(0, colon);
}

bool is_json_type(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  return lower_case(type) == "application/json";
}

// The client's own names of headers, or nothing if they are anything else.
bool is_header_list(std::string_view text) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";
  return text.find_first_not_of(kAllowed) == text.npos;
}

HttpError refuse(int status, std::string code, std::string message) {
  return {status, std::move(code), std::move(message), ""};
}

}  // namespace

bool route_matches(std::string_view route, std::string_view path) {
  if (!route.ends_with("/*")) return route == path;
  route.remove_suffix(1);
  return path.size() > route.size() && path.starts_with(route) && path.find('/', route.size()) == path.npos;
}

HttpPolicy::HttpPolicy(const HttpOptions& options, bool loopback, std::vector<Route> routes)
    : limits_(options.limits),
      cors_origins_(options.cors_origins),
      host_names_(options.host_names),
      loopback_(loopback),
      keys_(options.keys) {
  for (std::string& name : host_names_) name = lower_case(name);
  add_routes(std::move(routes));
}

void HttpPolicy::add_routes(std::vector<Route> routes) {
  for (Route& route : routes) routes_.push_back(std::move(route));
}

HttpPolicy::Found HttpPolicy::find(std::string_view method, std::string_view path) const {
  Found found;
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  for (const Route& route : routes_) {
    if (!route_matches(route.path, path)) continue;
    found.path = &route;
    if (route.method == wanted) found.route = &route;
    found.methods += route.method + (route.method == "GET" ? ", HEAD, " : ", ");
  }
  found.methods += "OPTIONS";
  return found;
}

// A web page can make its own name resolve to 127.0.0.1 and so reach what is bound there, but not hide that name.
bool HttpPolicy::host_allowed(const HttpRequest& request) const {
  constexpr std::array<std::string_view, 3> kOwn = {"localhost", "127.0.0.1", "[::1]"};
  const std::string* host = request.header("host");
  if (!loopback_ || host == nullptr) return true;
  const std::string name = lower_case(without_port(*host));
  return std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end() || listed(host_names_, name);
}

bool HttpPolicy::has_key(const HttpRequest& request) const {
  if (keys_.empty()) return true;
  const std::string* authorization = request.header("authorization");
  if (authorization != nullptr && keys_.accepts(bearer_key(*authorization))) return true;
  const std::string* key = request.header("x-api-key");
  return key != nullptr && keys_.accepts(*key);
}

void HttpPolicy::add_cors(const HttpRequest& request, Verdict& verdict) const {
  if (cors_origins_.empty()) return;
  verdict.headers.emplace_back("Vary", "Origin");
  const std::string* origin = request.header("origin");
  if (origin == nullptr || !listed(cors_origins_, *origin)) return;
  verdict.headers.emplace_back("Access-Control-Allow-Origin", *origin);
  verdict.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
  if (!verdict.preflight) return;
  verdict.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  verdict.headers.emplace_back("Access-Control-Max-Age", "600");
  const std::string* names = request.header("access-control-request-headers");
  if (names != nullptr && is_header_list(*names)) verdict.headers.emplace_back("Access-Control-Allow-Headers", *names);
}

// Nothing but JSON: what a web page's form can send across origins without asking first is none.
std::optional<HttpError> HttpPolicy::check_body(const HttpParser& parser) const {
  const HttpRequest& request = parser.head();
  if (parser.content_length() > limits_.body_bytes)
    return refuse(413, "body_too_large", "the body is longer than " + std::to_string(limits_.body_bytes) + " bytes");
  if (request.method != "POST") {
    if (parser.has_body()) return refuse(400, "body_not_allowed", "this request has no body");
    return std::nullopt;
  }
  if (!parser.states_length())
    return refuse(411, "length_required", "state the body's Content-Length or send it in chunks");
  const std::string* encoding = request.header("content-encoding");
  if (encoding != nullptr && lower_case(*encoding) != "identity")
    return refuse(415, "unsupported_encoding", "compressed bodies are not supported");
  const std::string* type = request.header("content-type");
  if (type == nullptr || !is_json_type(*type))
    return refuse(415, "unsupported_media_type", "Content-Type must be application/json");
  return std::nullopt;
}

Verdict HttpPolicy::judge(const HttpParser& parser) const {
  const HttpRequest& request = parser.head();
  Verdict verdict;
  if (!host_allowed(request)) {
    verdict.refusal = refuse(403, "host_not_allowed", "this Host is not served here; --allowed-host adds one");
    return verdict;
  }
  const Found found = find(request.method, request.path);
  if (found.path != nullptr) verdict.label = found.path->path;
  verdict.preflight = request.method == "OPTIONS";
  add_cors(request, verdict);
  if (verdict.preflight) {
    if (parser.has_body()) verdict.refusal = refuse(400, "body_not_allowed", "this request has no body");
    if (found.path != nullptr) verdict.headers.emplace_back("Allow", found.methods);
    return verdict;
  }
  const bool is_public = found.route != nullptr && found.route->is_public;
  if (!is_public && !has_key(request)) {
    verdict.refusal = refuse(401, "invalid_api_key", "give an API key, as Authorization: Bearer KEY");
  } else if (phase_ != ServerPhase::kReady && !(found.path != nullptr && found.path->always)) {
    verdict.refusal = phase_ == ServerPhase::kLoading
                          ? refuse(503, "loading", "the model is being loaded; try again in a moment")
                          : refuse(503, "draining", "this server is shutting down");
  } else if (found.path == nullptr) {
    verdict.refusal = refuse(404, "unknown_route", "there is nothing at this path");
  } else if (found.route == nullptr) {
    verdict.refusal = refuse(405, "method_not_allowed", "this path is for " + found.methods);
    verdict.headers.emplace_back("Allow", found.methods);
  } else {
    verdict.refusal = check_body(parser);
    verdict.route = verdict.refusal ? nullptr : found.route;
  }
  return verdict;
}

}  // namespace ddtree
