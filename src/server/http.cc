#include "server/http.h"

#include <sys/stat.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>

#include "server/http_connection.h"

namespace ddtree {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Protocol = asio::generic::stream_protocol;
using tcp = asio::ip::tcp;

constexpr size_t kReadBytes = 16 << 10;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr std::string_view kUnix = "unix:";

Error cannot_listen(const HttpOptions& options, const std::string& why) {
  return Error{Code::kInvalidArgument,
               "--host " + options.host + " --port " + std::to_string(options.port) + ": cannot listen there: " + why};
}

struct Address {
  Protocol::endpoint endpoint;
  bool loopback = true;    // this machine's own, by its number
  bool reachable = false;  // by other machines
};

Result<Address> unix_address(const HttpOptions& options) {
  const std::string path = options.host.substr(kUnix.size());
  constexpr size_t kMaxPath = 107;
  if (path.empty() || path.size() > kMaxPath) return cannot_listen(options, "a path of 1 to 107 bytes is needed");
  struct stat info = {};
  // A socket nobody answers at was left by a server that died.
  if (lstat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode)) {
    asio::io_context io;
    asio::local::stream_protocol::socket probe(io);
    error_code error;
    probe.connect(asio::local::stream_protocol::endpoint(path), error);
    if (!error) return cannot_listen(options, "another server does");
    unlink(path.c_str());
  }
  return Address{asio::local::stream_protocol::endpoint(path), false, false};
}

Result<Address> resolve(const HttpOptions& options) {
  if (options.host.starts_with(kUnix)) return unix_address(options);
  asio::io_context io;
  tcp::resolver resolver(io);
  error_code error;
  const auto found = resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
  if (error || found.empty()) return cannot_listen(options, error.message());
  tcp::endpoint chosen = *found.begin();
  for (const auto& entry : found)
    if (entry.endpoint().address().is_v4() && !chosen.address().is_v4()) chosen = entry.endpoint();
  const bool loopback = chosen.address().is_loopback();
  return Address{chosen, loopback, !loopback};
}

// What the clients of one machine have in common; empty: not to be counted.
std::string address_of(const Protocol::endpoint& peer) {
  const int family = peer.protocol().family();
  tcp::endpoint endpoint;
  if ((family != AF_INET && family != AF_INET6) || peer.size() > endpoint.capacity()) return {};
  std::memcpy(endpoint.data(), peer.data(), peer.size());
  return endpoint.address().is_loopback() ? std::string() : endpoint.address().to_string();
}

class Server final : public HttpServer, public ConnectionHost {
 public:
  Server(HttpOptions options, bool loopback, std::vector<Route> routes)
      : options_(std::move(options)),
        policy_(options_, loopback, std::move(routes)),
        io_(std::make_shared<asio::io_context>(1)),
        acceptor_(*io_),
        pause_(*io_),
        signals_(*io_),
        scratch_(kReadBytes, '\0') {}

  ~Server() override {
    if (!unix_path_.empty()) unlink(unix_path_.c_str());
  }

  Status open(const Address& address);

  uint16_t port() const override { return port_; }
  void run() override;
  void ready(std::vector<Route> routes) override;
  void drain() override;
  void stop() override;
  void set_keys(ApiKeys keys) override;
  bool wait_idle(std::chrono::milliseconds at_most) override;
  void on_signals(std::vector<int> signals, std::function<void(int)> call) override;

  const HttpPolicy& policy() const override { return policy_; }
  const HttpLimits& limits() const override { return options_.limits; }
  std::string& scratch() override { return scratch_; }
  ReplyState::Post poster() override;
  void begun(bool counts) override;
  void ended(bool counts, const HttpDone& done) override;
  void closed(Connection& connection) override;

 private:
  void accept_next();
  void accept(Protocol::socket socket);
  void next_signal();

  const HttpOptions options_;
  HttpPolicy policy_;
  std::shared_ptr<asio::io_context> io_;  // shared for the moment in which a reply posts to it
  asio::basic_socket_acceptor<Protocol> acceptor_;
  asio::steady_timer pause_;
  asio::signal_set signals_;
  std::function<void(int)> on_signal_;
  std::string scratch_, unix_path_;
  uint16_t port_ = 0;
  bool stopping_ = false;
  std::set<Connection*> connections_;
  std::map<std::string, int> per_address_;

  std::mutex mutex_;
  std::condition_variable idle_;
  int in_flight_ = 0;  // guarded by mutex_
};

Status Server::open(const Address& address) {
  error_code error;
  const auto failed = [&](const error_code& e) { return cannot_listen(options_, e.message()); };
  if (acceptor_.open(address.endpoint.protocol(), error)) return failed(error);
  const bool is_unix = options_.host.starts_with(kUnix);
  if (!is_unix && acceptor_.set_option(asio::socket_base::reuse_address(true), error)) return failed(error);
  if (acceptor_.bind(address.endpoint, error)) return failed(error);
  if (is_unix) {
    unix_path_ = options_.host.substr(kUnix.size());
    chmod(unix_path_.c_str(), S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP);
  } else {
    tcp::endpoint bound;
    const Protocol::endpoint local = acceptor_.local_endpoint(error);
    if (error || local.size() > bound.capacity()) return failed(error);
    std::memcpy(bound.data(), local.data(), local.size());
    port_ = bound.port();
  }
  if (acceptor_.listen(asio::socket_base::max_listen_connections, error)) return failed(error);
  accept_next();
  return {};
}

void Server::accept_next() {
  acceptor_.async_accept([this](const error_code& error, Protocol::socket socket) {
    if (stopping_) return;
    if (!error) accept(std::move(socket));
    if (!error || error == asio::error::connection_aborted) {
      accept_next();
      return;
    }
    log(LogLevel::kWarning, "accept failed", {{"why", error.message()}});  // out of descriptors, most likely
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](const error_code&) {
      if (!stopping_) accept_next();
    });
  });
}

void Server::accept(Protocol::socket socket) {
  error_code error;
  const Protocol::endpoint peer = socket.remote_endpoint(error);
  if (error) return;  // gone already
  socket.set_option(tcp::no_delay(true), error);
  socket.set_option(asio::socket_base::send_buffer_size(options_.limits.kernel_bytes), error);
  const std::string address = address_of(peer);
  const bool too_many = std::ssize(connections_) >= options_.limits.connections;
  if (too_many || (!address.empty() && per_address_[address] >= options_.limits.connections_per_address)) {
    constexpr std::string_view kBusy =
        "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n";
    socket.non_blocking(true, error);
    socket.send(asio::buffer(kBusy.data(), kBusy.size()), 0, error);
    socket.shutdown(Protocol::socket::shutdown_both, error);
    return;
  }
  if (!address.empty()) ++per_address_[address];
  const auto connection = std::make_shared<Connection>(*this, std::move(socket), address);
  connections_.insert(connection.get());
  connection->start();
}

void Server::closed(Connection& connection) {
  connections_.erase(&connection);
  if (connection.address().empty()) return;
  const auto count = per_address_.find(connection.address());
  if (--count->second == 0) per_address_.erase(count);
}

void Server::run() {
  for (bool again = true; again;) {
    again = false;
    try {
      io_->run();
    } catch (const std::exception& problem) {
      log(LogLevel::kError, "server thread", {{"what", std::string(problem.what())}});
      again = true;
    }
  }
}

void Server::ready(std::vector<Route> routes) {
  asio::post(*io_, [this, routes = std::move(routes)]() mutable {
    policy_.add_routes(std::move(routes));
    if (policy_.phase() == ServerPhase::kLoading) policy_.set_phase(ServerPhase::kReady);
  });
}

void Server::drain() {
  asio::post(*io_, [this] { policy_.set_phase(ServerPhase::kDraining); });
}

void Server::set_keys(ApiKeys keys) {
  asio::post(*io_, [this, keys = std::move(keys)]() mutable { policy_.set_keys(std::move(keys)); });
}

void Server::stop() {
  asio::post(*io_, [this] {
    stopping_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    signals_.cancel(ignored);
    while (!connections_.empty()) (*connections_.begin())->close();
  });
}

ReplyState::Post Server::poster() {
  return [weak = std::weak_ptr(io_)](std::function<void()> call) {
    if (const std::shared_ptr<asio::io_context> io = weak.lock()) asio::post(*io, std::move(call));
  };
}

void Server::begun(bool counts) {
  const std::lock_guard lock(mutex_);
  in_flight_ += counts;
}

void Server::ended(bool counts, const HttpDone& done) {
  if (options_.on_done) options_.on_done(done);
  const std::lock_guard lock(mutex_);
  in_flight_ -= counts;
  if (in_flight_ == 0) idle_.notify_all();
}

bool Server::wait_idle(std::chrono::milliseconds at_most) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, at_most, [this] { return in_flight_ == 0; });
}

void Server::on_signals(std::vector<int> signals, std::function<void(int)> call) {
  on_signal_ = std::move(call);
  error_code ignored;
  for (int signal : signals) signals_.add(signal, ignored);
  next_signal();
}

void Server::next_signal() {
  signals_.async_wait([this](const error_code& error, int signal) {
    if (error) return;
    on_signal_(signal);
    next_signal();
  });
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(HttpOptions options, std::vector<Route> routes) {
  TRY_ASSIGN(const Address address, resolve(options));
  if (address.reachable && options.keys.empty() && !options.allow_unauthenticated)
    return Error{Code::kInvalidArgument,
                 "--host " + options.host +
                     ": other machines can reach that, and would need no key: give --api-key-file, or "
                     "--allow-unauthenticated if that is meant"};
  auto server = std::make_unique<Server>(std::move(options), address.loopback, std::move(routes));
  TRY(server->open(address));
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace ddtree
