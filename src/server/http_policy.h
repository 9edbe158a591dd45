// HttpPolicy: who may ask for what. From a request's head to the route that answers it, or a refusal; no sockets, no
// clock. In this order: the Host, preflights, the key, the route, the server's phase, the kind of body.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"
#include "server/http_error.h"
#include "server/http_parser.h"

namespace ddtree {

enum class ServerPhase : uint8_t { kLoading, kReady, kDraining };

struct Verdict {
  const Route* route = nullptr;      // null with a refusal or a preflight
  std::string_view label = "other";  // the route's path, for logs and metrics
  std::optional<HttpError> refusal;
  bool preflight = false;  // answered 204, by its headers alone
  HttpHeaders headers;     // for the reply, whatever it is
};

class HttpPolicy {
 public:
  HttpPolicy(const HttpOptions& options, bool loopback, std::vector<Route> routes);

  void add_routes(std::vector<Route> routes);
  void set_phase(ServerPhase phase) { phase_ = phase; }
  void set_keys(ApiKeys keys) { keys_ = std::move(keys); }
  ServerPhase phase() const { return phase_; }

  Verdict judge(const HttpParser& parser) const;

 private:
  struct Found {
    const Route* route = nullptr;  // of this method
    const Route* path = nullptr;   // of any
    std::string methods;           // "GET, OPTIONS"
  };

  Found find(std::string_view method, std::string_view path) const;
  bool host_allowed(const HttpRequest& request) const;
  bool has_key(const HttpRequest& request) const;
  void add_cors(const HttpRequest& request, Verdict& verdict) const;
  std::optional<HttpError> check_body(const HttpParser& parser) const;

  HttpLimits limits_;
  std::vector<std::string> cors_origins_, host_names_;
  bool loopback_;
  ApiKeys keys_;
  std::deque<Route> routes_;  // verdicts point into it
  ServerPhase phase_ = ServerPhase::kLoading;
};

// Whether `path` is what the route's path says, its "/*" included.
bool route_matches(std::string_view route, std::string_view path);

}  // namespace ddtree
