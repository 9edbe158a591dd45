#include "server/http_connection.h"

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>

#include "server/http_response.h"

namespace ddtree {
namespace {

namespace asio = boost::asio;

constexpr size_t kPipelined = 16 << 10;  // read ahead of the request being answered
constexpr size_t kSlice = 64 << 10;      // written with one deadline

}  // namespace

Connection::Connection(ConnectionHost& host, Socket socket, std::string address)
    : host_(host),
      socket_(std::move(socket)),
      address_(std::move(address)),
      read_deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      silence_(socket_.get_executor()) {}

void Connection::start() {
  boost::system::error_code ignored;
  socket_.non_blocking(true, ignored);
  limit_reading(host_.limits().head_time);
  await_readable();
}

void Connection::close() {
  if (closed_) return;
  closed_ = true;
  const std::shared_ptr<Connection> self = shared_from_this();
  boost::system::error_code ignored;
  socket_.close(ignored);
  for (Timer* timer : {&read_deadline_, &write_deadline_, &silence_}) timer->cancel();
  if (current_) {
    current_->reply->lose();
    end_current(true);
  }
  host_.closed(*this);
}

// --- reading ---

// Waits until there is something and reads into memory that all connections share: an idle one holds no buffer.
void Connection::await_readable() {
  if (closed_ || ended_ || awaiting_ || (stage_ == Stage::kBusy && in_.size() >= kPipelined)) return;
  awaiting_ = true;
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](boost::system::error_code error) {
    self->awaiting_ = false;
    if (self->closed_) return;
    error ? self->close() : self->read();
    self->await_readable();
  });
}

void Connection::read() {
  boost::system::error_code error;
  std::string& scratch = host_.scratch();
  const size_t got = socket_.read_some(asio::buffer(scratch), error);
  if (error == asio::error::would_block || error == asio::error::interrupted) return;
  if (error == asio::error::eof) {
    read_ended();
  } else if (error) {
    close();
  } else if (stage_ != Stage::kLeaving) {  // what a refused client still sends is dropped
    in_.append(scratch, 0, got);
    advance();
  }
}

// The client will send nothing more. It is taken to be gone, unless its answer is there already.
void Connection::read_ended() {
  ended_ = true;
  const bool answered = stage_ == Stage::kBusy && current_->reply->decided();
  if (stage_ == Stage::kReading || answered) {
    if (stage_ == Stage::kReading) stage_ = Stage::kLeaving;
    wake();
  } else {
    close();
  }
}

// Parses what was read, up to the end of a request.
void Connection::advance() {
  while (stage_ == Stage::kReading && !closed_) {
    if (!parser_) {
      if (in_.empty()) break;
      parser_.emplace(host_.limits());
      judged_ = false;
      first_byte_ = Clock::now();
      limit_reading(host_.limits().head_time);
    }
    in_.erase(0, parser_->feed(in_));
    const HttpParser::State state = parser_->state();
    if (state == HttpParser::State::kHead) break;
    if (state == HttpParser::State::kBad) {
      verdict_ = judged_ ? verdict_ : Verdict();
      close_after_ = true;
      refuse(parser_->error());
    } else if (!judged_) {
      judge();
    } else if (state == HttpParser::State::kDone) {
      begin();
    } else {
      break;
    }
  }
  if (ended_ && stage_ == Stage::kReading) {
    stage_ = Stage::kLeaving;
    wake();
  }
}

void Connection::judge() {
  judged_ = true;
  verdict_ = host_.policy().judge(*parser_);
  const bool unread = parser_->state() == HttpParser::State::kBody;
  if (verdict_.refusal) {
    close_after_ = unread;
    refuse(*verdict_.refusal);
  } else if (unread) {
    limit_reading(host_.limits().body_time);
    if (parser_->expects_continue() && in_.empty()) {
      out_ += "HTTP/1.1 100 Continue\r\n\r\n";
      wake();
    }
  }
}

void Connection::limit_reading(std::chrono::milliseconds time) {
  read_deadline_.expires_after(time);
  read_deadline_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error && !self->closed_ && self->read_deadline_.expiry() <= Clock::now()) self->reading_timed_out();
  });
}

void Connection::reading_timed_out() {
  if (stage_ == Stage::kReading && parser_) {
    if (!judged_) verdict_ = Verdict();
    close_after_ = true;
    refuse({408, "request_timeout", "the request did not arrive in time", ""});
  } else if (stage_ != Stage::kBusy) {
    close();
  }
}

// --- a request ---

void Connection::begin() {
  HttpRequest request = parser_->take();
  begin_current(request);
  request.request_id = current_->done.request_id;
  if (verdict_.preflight) {
    current_->reply->send(204, "", "", {});
    return;
  }
  const std::shared_ptr<ReplyState> reply = current_->reply;
  try {
    verdict_.route->handle(std::make_shared<const HttpRequest>(std::move(request)), make_reply(reply));
  } catch (const std::exception& problem) {
    log(LogLevel::kError, "handler failed",
        {{"route", std::string(verdict_.label)}, {"what", std::string(problem.what())}});
  }
  if (ended_ && !reply->decided()) close();
}

void Connection::refuse(const HttpError& error) {
  begin_current(parser_->head());
  send_error(*make_reply(current_->reply), error);
}

void Connection::begin_current(const HttpRequest& request) {
  const HttpLimits& limits = host_.limits();
  stage_ = Stage::kBusy;
  read_deadline_.cancel();
  close_after_ = close_after_ || !parser_->keep_alive() || ++requests_ >= limits.requests_per_connection;
  Current& current = current_.emplace();
  current.label = verdict_.label;
  current.headers = verdict_.headers;
  current.counts = verdict_.route != nullptr && !verdict_.route->always;
  current.head_only = request.method == "HEAD";
  current.done.request_id = request_id(request.header("x-request-id"));
  current.done.method = request.method;
  current.done.route = current.label;
  const auto wake = [weak = weak_from_this()] {
    if (const std::shared_ptr<Connection> self = weak.lock()) self->wake();
  };
  current.reply = std::make_shared<ReplyState>(limits.outbound_bytes, host_.poster(), wake);
  host_.begun(current.counts);
}

// Called once the reply is written or the client gone.
void Connection::end_current(bool gone) {
  Current current = *std::exchange(current_, std::nullopt);
  current.done.seconds = std::chrono::duration<double>(Clock::now() - first_byte_).count();
  current.done.gone = gone;
  current.done.notes = current.reply->take_notes();
  parser_.reset();
  host_.ended(current.counts, current.done);
  if (closed_) return;
  if (close_after_) {
    stage_ = Stage::kLeaving;
    return;
  }
  stage_ = Stage::kReading;
  limit_reading(host_.limits().idle_time);
  advance();
  await_readable();
}

// --- writing ---

void Connection::wake() {
  if (current_ && current_->reply->awake()) close();
  pump();
}

// Writes what there is to write, until a write is under way or there is nothing.
void Connection::pump() {
  if (pumping_) return;
  pumping_ = true;
  while (!closed_ && !writing_) {
    pull();
    if (closed_) break;
    if (!out_.empty()) {
      write_out();
    } else if (current_ && current_->last) {
      end_current(false);
    } else {
      stage_ == Stage::kLeaving ? leave() : await_output();
      break;
    }
  }
  pumping_ = false;
}

// Moves what the handler has replied to out_.
void Connection::pull() {
  if (!current_ || !out_.empty()) return;
  ReplyState::Output output = current_->reply->take();
  if (output.broken) {
    close();
    return;
  }
  if (output.begun) put_head(output);
  if (!current_->head_only) {
    out_ += current_->chunked ? chunk(output.body) : output.body;
    if (current_->chunked && output.done && !current_->last) out_ += kLastChunk;
  }
  current_->last = output.done;
}

void Connection::put_head(ReplyState::Output& output) {
  ResponseHead head;
  head.status = output.status;
  head.content_type = output.content_type;
  head.http_1_0 = parser_->http_1_0();
  head.chunked = output.stream && !head.http_1_0;
  if (!output.stream && output.status != 204) head.content_length = output.body.size();
  const bool draining = host_.policy().phase() == ServerPhase::kDraining;
  close_after_ = close_after_ || draining || (output.stream && head.http_1_0);
  head.close = close_after_;
  current_->chunked = head.chunked;
  current_->streaming = output.stream;
  current_->done.status = output.status;
  out_ += response_head(head, current_->done.request_id, current_->headers, output.headers);
}

void Connection::write_out() {
  writing_ = true;
  silence_.cancel();
  write_deadline_.expires_after(host_.limits().write_time);
  write_deadline_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    if (!error && self->writing_ && self->write_deadline_.expiry() <= Clock::now()) self->close();
  });
  const auto slice = asio::buffer(out_.data() + out_at_, std::min(kSlice, out_.size() - out_at_));
  asio::async_write(socket_, slice, [self = shared_from_this()](boost::system::error_code error, size_t bytes) {
    self->writing_ = false;
    self->write_deadline_.cancel();
    error ? self->close() : self->written(bytes);
  });
}

void Connection::written(size_t bytes) {
  out_at_ += bytes;
  if (current_) current_->done.bytes += static_cast<int64_t>(bytes);
  if (out_at_ == out_.size()) {
    out_.clear();
    out_at_ = 0;
    if (current_) current_->reply->written();
  }
  pump();
}

// A silent stream says now and then that it is alive.
void Connection::await_output() {
  if (!current_ || !current_->streaming) return;
  silence_.expires_after(host_.limits().keep_alive);
  silence_.async_wait([self = shared_from_this()](boost::system::error_code error) {
    const bool due = !error && !self->closed_ && self->silence_.expiry() <= Clock::now();
    if (!due || self->writing_ || !self->current_ || !self->current_->streaming) return;
    constexpr std::string_view kComment = ": ka\n\n";
    self->out_ += self->current_->chunked ? chunk(kComment) : std::string(kComment);
    self->pump();
  });
}

// All is written: the client is told so, and gets time to read it before the connection goes.
void Connection::leave() {
  boost::system::error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  if (ended_) {
    close();
  } else {
    limit_reading(host_.limits().linger_time);
  }
}

}  // namespace ddtree
