#include "server/raw_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace ddtree {
namespace {

constexpr int kPatienceMs = 20'000;  // far beyond any limit in the tests: who waits so long has found a bug

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::string Answer::header(std::string_view lower_case_name) const {
  for (const auto& [name, value] : headers)
    if (name == lower_case_name) return value;
  return {};
}

RawClient::RawClient(uint16_t port, int receive_buffer) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_GE(fd_, 0);
  if (receive_buffer > 0) setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
}

RawClient::RawClient(const std::string& unix_path) {
  fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
  EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << strerror(errno);
}

RawClient::~RawClient() {
  if (fd_ >= 0) close(fd_);
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void RawClient::end_sending() { shutdown(fd_, SHUT_WR); }

void RawClient::reset() {
  const linger now = {1, 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd_);
  fd_ = -1;
}

bool RawClient::more() {
  pollfd readable = {fd_, POLLIN, 0};
  const int ready = poll(&readable, 1, kPatienceMs);
  EXPECT_EQ(ready, 1) << "nothing from the server";
  if (ready != 1) return false;
  std::array<char, 65536> buffer;
  const ssize_t got = recv(fd_, buffer.data(), buffer.size(), 0);
  if (got <= 0) return false;
  in_.append(buffer.data(), static_cast<size_t>(got));
  return true;
}

std::string RawClient::line() {
  size_t end;
  while ((end = in_.find('\n')) == in_.npos)
    if (!more()) return {};
  std::string text = in_.substr(0, end);
  in_.erase(0, end + 1);
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

Answer RawClient::answer(bool to_head) {
  Answer answer;
  const std::string first = line();
  if (!first.starts_with("HTTP/1.1 ")) return answer;
  answer.status = std::stoi(first.substr(9, 3));
  for (std::string field = line(); !field.empty(); field = line()) {
    const size_t colon = field.find(": ");
    EXPECT_NE(colon, field.npos) << field;
    answer.headers.emplace_back(lower_case(field.substr(0, colon)), field.substr(colon + 2));
  }
  if (to_head || answer.status == 204 || answer.status == 100) {
    answer.complete = true;
  } else if (answer.header("transfer-encoding") == "chunked") {
    for (;;) {
      const std::string size_line = line();
      if (size_line.empty()) return answer;
      const size_t size = std::stoul(size_line, nullptr, 16);
      while (in_.size() < size + 2)
        if (!more()) return answer;
      answer.body += in_.substr(0, size);
      in_.erase(0, size + 2);
      if (size == 0) break;
    }
    answer.complete = true;
  } else {
    const std::string length = answer.header("content-length");
    const size_t size = length.empty() ? std::string::npos : std::stoul(length);
    while (in_.size() < size && more()) {
    }
    answer.body = in_.substr(0, size);
    answer.complete = length.empty() || answer.body.size() == size;
    in_.erase(0, answer.body.size());
  }
  return answer;
}

std::string RawClient::rest() {
  while (more()) {
  }
  return std::move(in_);
}

bool RawClient::closed() { return rest().empty(); }

std::string get(std::string_view path, std::string_view headers) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(headers) + "\r\n";
}

std::string post(std::string_view path, std::string_view body, std::string_view headers) {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
         "Content-Length: " + std::to_string(body.size()) + "\r\n" + std::string(headers) + "\r\n" + std::string(body);
}

ToyServer::ToyServer(HttpOptions options, bool make_ready) {
  options.port = 0;
  options.on_done = [this](const HttpDone& done) {
    const std::lock_guard lock(mutex_);
    done_.push_back(done);
    changed_.notify_all();
  };
  Result<std::unique_ptr<HttpServer>> server = HttpServer::listen(std::move(options), public_routes());
  EXPECT_TRUE(server.ok()) << server.error().message;
  server_ = *std::move(server);
  if (make_ready) server_->ready(routes());
  thread_ = std::thread([this] { server_->run(); });
}

ToyServer::~ToyServer() {
  server_->stop();
  thread_.join();
  for (std::thread& thread : threads_) thread.join();
}

std::vector<Route> ToyServer::public_routes() {
  Route health = {"GET", "/health", true, true, nullptr};
  health.handle = [](auto, auto reply) { reply->send(200, "text/plain", "ok"); };
  return {health};
}

std::vector<Route> ToyServer::routes() {
  using Request = std::shared_ptr<const HttpRequest>;
  using Reply = std::shared_ptr<HttpReply>;
  const auto route = [this](std::string method, std::string path, std::function<void(const HttpRequest&, Reply)> call) {
    return Route{std::move(method), std::move(path), false, false, [this, call](Request request, Reply reply) {
                   ++handled;
                   call(*request, std::move(reply));
                 }};
  };
  return {
      route("GET", "/hello", [](const HttpRequest&, Reply reply) { reply->send(200, "text/plain", "hello"); }),
      route("POST", "/echo",
            [](const HttpRequest& request, Reply reply) { reply->send(200, "application/json", request.body); }),
      route("GET", "/items/*",
            [](const HttpRequest& request, Reply reply) { reply->send(200, "text/plain", request.path); }),
      route("GET", "/drop", [](const HttpRequest&, Reply) {}),
      route("GET", "/stream", [this](const HttpRequest& request, Reply reply) { stream(request, std::move(reply)); }),
      route("GET", "/flood", [this](const HttpRequest&, Reply reply) { flood(std::move(reply)); }),
      route("GET", "/hang", [this](const HttpRequest&, Reply reply) { hang(std::move(reply)); }),
  };
}

void ToyServer::count_gone() {
  const std::lock_guard lock(mutex_);
  ++gone_;
  changed_.notify_all();
}

void ToyServer::stream(const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
  const int events = std::stoi(request.query);
  reply->on_gone([this] { count_gone(); });
  const std::lock_guard lock(mutex_);
  threads_.emplace_back([reply = std::move(reply), events] {
    reply->start_stream();
    for (int i = 0; i < events; ++i) reply->event("{\"n\":" + std::to_string(i) + "}");
    reply->finish();
  });
}

void ToyServer::flood(std::shared_ptr<HttpReply> reply) {
  const auto stop = std::make_shared<std::atomic<bool>>(false);
  reply->on_gone([this, stop] {
    *stop = true;
    count_gone();
  });
  const std::lock_guard lock(mutex_);
  threads_.emplace_back([reply = std::move(reply), stop] {
    reply->start_stream();
    const std::string data(4096, 'x');
    while (!*stop) {
      reply->event(data);
      std::this_thread::yield();
    }
  });
}

// Streams one event, then nothing, for as long as there is a client.
void ToyServer::hang(std::shared_ptr<HttpReply> reply) {
  reply->start_stream();
  reply->event("first");
  reply->on_gone([this] { count_gone(); });
  const std::lock_guard lock(mutex_);
  held_.push_back(std::move(reply));
}

void ToyServer::await_gone(int count) {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [&] { return gone_ >= count; }));
}

void ToyServer::await_done(size_t count) {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [&] { return done_.size() >= count; }));
}

std::vector<HttpDone> ToyServer::done() {
  const std::lock_guard lock(mutex_);
  return done_;
}

}  // namespace ddtree
