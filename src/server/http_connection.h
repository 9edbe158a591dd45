// Connection: one client's socket. Reads requests one after another, begins each when the one before it is answered,
// and writes what the handlers reply. All of it runs on the server's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/http_parser.h"
#include "server/http_policy.h"
#include "server/http_reply.h"

namespace ddtree {

// What connections need of their server.
struct ConnectionHost {
  virtual const HttpPolicy& policy() const = 0;
  virtual const HttpLimits& limits() const = 0;
  virtual std::string& scratch() = 0;  // to read into
  virtual ReplyState::Post poster() = 0;
  virtual void begun(bool counts) = 0;  // a request; counts: it must end before the server does
  virtual void ended(bool counts, const HttpDone& done) = 0;
  virtual void closed(class Connection& connection) = 0;

 protected:
  ~ConnectionHost() = default;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::generic::stream_protocol::socket;

  Connection(ConnectionHost& host, Socket socket, std::string address);
  void start();
  void close();
  const std::string& address() const { return address_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Timer = boost::asio::steady_timer;

  // The request whose reply is being written.
  struct Current {
    std::shared_ptr<ReplyState> reply;
    std::string label;
    HttpDone done;
    HttpHeaders headers;  // the policy's
    bool counts = false, head_only = false, chunked = false, streaming = false;
    bool last = false;  // all of the reply was taken
  };

  enum class Stage : uint8_t {
    kReading,  // between requests, or inside one
    kBusy,     // with a request
    kLeaving,  // writes what is left, then waits for the client to go
  };

  void await_readable();
  void read();
  void read_ended();
  void advance();
  void judge();
  void begin();
  void begin_current(const HttpRequest& request);
  void refuse(const HttpError& error);
  void pump();
  void pull();
  void put_head(ReplyState::Output& output);
  void end_current(bool gone);
  void write_out();
  void written(size_t bytes);
  void await_output();
  void leave();
  void wake();
  void limit_reading(std::chrono::milliseconds time);
  void reading_timed_out();

  ConnectionHost& host_;
  Socket socket_;
  const std::string address_;  // of the client, to count by
  Timer read_deadline_, write_deadline_, silence_;
  Stage stage_ = Stage::kReading;
  bool closed_ = false;
  bool ended_ = false;        // the client sends nothing more
  bool close_after_ = false;  // the response under way
  bool judged_ = false;       // the request that is being read
  bool awaiting_ = false, writing_ = false, pumping_ = false;
  int requests_ = 0;
  std::string in_, out_;  // not parsed yet; not written yet
  size_t out_at_ = 0;     // of out_, what is not written begins here
  std::optional<HttpParser> parser_;
  Verdict verdict_;
  Clock::time_point first_byte_ = Clock::now();
  std::optional<Current> current_;
};

}  // namespace ddtree
