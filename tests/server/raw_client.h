// A client that sends whatever bytes a test likes, and a server with toy routes to send them to.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/http.h"

namespace ddtree {

struct Answer {
  int status = 0;  // 0: the connection ended without one
  HttpHeaders headers;
  std::string body;  // its chunks joined
  bool complete = false;
  std::string header(std::string_view lower_case_name) const;
};

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer = 0);
  explicit RawClient(const std::string& unix_path);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool send(std::string_view bytes);  // false: the server has closed
  void end_sending();                 // half close
  void reset();                       // RST
  Answer answer(bool to_head = false);
  std::string line();  // up to "\n", without it; empty at the end of the connection
  bool closed();       // waits until the server has ended the connection
  std::string rest();  // all until then

 private:
  bool more();
  int fd_ = -1;
  std::string in_;
};

// "GET /path HTTP/1.1" with a Host and these further header lines.
std::string get(std::string_view path, std::string_view headers = "");
std::string post(std::string_view path, std::string_view body, std::string_view headers = "");

// Runs a server until it is destroyed. Routes: GET /health (public, always); GET /hello; POST /echo (the body back);
// GET /size (how many requests were handled); GET /stream?N (N events, from another thread); GET /hang (answers never,
// counts clients gone); GET /flood (events without end until the client is gone); GET /drop (lets go of the reply);
// GET /items/*.
class ToyServer {
 public:
  explicit ToyServer(HttpOptions options = {}, bool make_ready = true);
  ~ToyServer();
  HttpServer& server() { return *server_; }
  uint16_t port() const { return server_->port(); }

  std::atomic<int> handled{0};
  void await_gone(int count);  // until so many on_gone calls have come
  int gone() const { return gone_; }
  std::vector<HttpDone> done();  // so far
  void await_done(size_t count);

  static std::vector<Route> public_routes();
  std::vector<Route> routes();

 private:
  void stream(const HttpRequest& request, std::shared_ptr<HttpReply> reply);
  void flood(std::shared_ptr<HttpReply> reply);
  void hang(std::shared_ptr<HttpReply> reply);
  void count_gone();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> gone_{0};
  std::vector<HttpDone> done_;                    // guarded by mutex_
  std::vector<std::shared_ptr<HttpReply>> held_;  // guarded by mutex_
  std::vector<std::thread> threads_;              // guarded by mutex_
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

}  // namespace ddtree
