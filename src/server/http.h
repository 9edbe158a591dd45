// HttpServer: HTTP/1.1 for routes, on one thread. It reads requests within limits, refuses what is malformed or not
// allowed, hands the rest to handlers, and writes their replies; server-sent events too.
//
// Every route needs a key unless it says that it is public. Until ready() was called, and from drain() on, only routes
// that are `always` there are answered; all others get 503.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "server/auth.h"
#include "server/limits.h"

namespace ddtree {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// Complete, within the limits, and of valid syntax.
struct HttpRequest {
  std::string method, path, query;  // as sent, not percent-decoded; the query without its '?'
  HttpHeaders headers;              // names in lower case
  std::string body;
  std::string request_id;  // the client's X-Request-Id if it is valid, else a new one

  const std::string* header(std::string_view lower_case_name) const;  // null: not there
};

// The answer to one request: exactly one of send() or start_stream() … finish(). Thread-safe, never blocks, may outlive
// the server. Without a client, what is written is dropped. If it is destroyed unanswered the client gets 500, or a
// stream that breaks off.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void send(int status, std::string content_type, std::string body, HttpHeaders headers = {}) = 0;

  virtual void start_stream() = 0;           // 200, text/event-stream
  virtual void event(std::string data) = 0;  // "data: …": one line, no line breaks in it
  virtual void finish() = 0;

  // Called once, on the server's thread, when the client is gone or reads too slowly before the reply is finished; at
  // the next occasion if that has happened already.
  virtual void on_gone(std::function<void()> call) = 0;

  // A field for the line that is logged about this request.
  virtual void note(LogField field) = 0;
};

struct Route {
  std::string method, path;  // the path may end in "/*": one more segment, of any name
  bool is_public = false;    // needs no key
  bool always = false;       // answered while loading and draining too
  // Called on the server's thread, must not block it.
  std::function<void(std::shared_ptr<const HttpRequest>, std::shared_ptr<HttpReply>)> handle;
};

// What is known about a request once its reply is written or its client gone.
struct HttpDone {
  std::string request_id, method;
  std::string route;  // the Route's path, or "other": never text of the client
  int status = 0;
  double seconds = 0;  // since its first byte
  int64_t bytes = 0;   // written
  bool gone = false;
  std::vector<LogField> notes;
};

struct HttpOptions {
  std::string host = "127.0.0.1";  // an address, a name that resolves to one, or unix:/path
  uint16_t port = 8000;            // 0: any that is free
  HttpLimits limits;
  ApiKeys keys;                        // none: everybody may do everything
  bool allow_unauthenticated = false;  // without keys, on an address that other machines reach
  std::vector<std::string> cors_origins;
  std::vector<std::string> host_names;           // further values of Host that are accepted on a loopback address
  std::function<void(const HttpDone&)> on_done;  // on the server's thread
};

class HttpServer {
 public:
  // Binds and listens. kInvalidArgument also where clients of other machines would need no key, unless that is allowed.
  static Result<std::unique_ptr<HttpServer>> listen(HttpOptions options, std::vector<Route> routes);
  virtual ~HttpServer() = default;  // not while run() runs

  virtual uint16_t port() const = 0;
  virtual void run() = 0;  // serves on the calling thread until stop()

  // Thread-safe, all of them.
  virtual void ready(std::vector<Route> routes) = 0;  // adds routes and answers all
  virtual void drain() = 0;                           // refuses new requests, lets those that run go on
  virtual void stop() = 0;                            // closes every connection and ends run()
  virtual void set_keys(ApiKeys keys) = 0;
  virtual bool wait_idle(std::chrono::milliseconds at_most) = 0;  // until no request that is not `always` is in flight

  // Before run(): `call` is called on the server's thread for each of these signals, which then do nothing else.
  virtual void on_signals(std::vector<int> signals, std::function<void(int)> call) = 0;
};

}  // namespace ddtree
