// ReplyState: where a handler, on any thread, puts the answer and the connection, on the server's thread, takes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http.h"

namespace ddtree {

class ReplyState {
 public:
  using Post = std::function<void(std::function<void()>)>;  // runs a call on the server's thread, if that still runs

  // `wake` is called on the server's thread when there is something to take; at most one call is under way.
  ReplyState(size_t outbound_bytes, Post post, std::function<void()> wake);

  // The handler's side.
  void send(int status, std::string content_type, std::string body, HttpHeaders headers);
  void start_stream();
  void event(std::string_view data);
  void finish();
  void on_gone(std::function<void()> call);
  void note(LogField field);
  void abandon();  // the handler has let go of it

  // The connection's side.
  struct Output {
    bool begun = false;  // for the first time: status, content type and headers are there
    bool stream = false;
    bool done = false;    // nothing follows
    bool broken = false;  // nothing more can follow: the client is too slow, or the stream was abandoned
    int status = 0;
    std::string content_type, body;
    HttpHeaders headers;
  };
  bool awake();  // `wake` was called; true: this reply is broken
  Output take();
  void written();  // all that was taken
  bool decided();  // the handler has finished it
  void lose();     // the client is gone
  std::vector<LogField> take_notes();

 private:
  enum class Stage : uint8_t { kOpen, kStream, kFinished };
  void put_whole(int status, std::string content_type, std::string body, HttpHeaders headers);
  void wake_outside(std::unique_lock<std::mutex>& lock);

  const size_t outbound_bytes_;
  const Post post_;
  const std::function<void()> wake_;

  std::mutex mutex_;  // guards all below
  Stage stage_ = Stage::kOpen;
  bool gone_ = false, broken_ = false, waking_ = false, begun_ = false, stream_ = false;
  size_t taken_ = 0;  // bytes being written
  Output head_;       // status, type, headers
  std::string out_;
  std::function<void()> on_gone_;
  std::vector<LogField> notes_;
};

// The handler's end of a ReplyState.
std::shared_ptr<HttpReply> make_reply(std::shared_ptr<ReplyState> state);

}  // namespace ddtree
