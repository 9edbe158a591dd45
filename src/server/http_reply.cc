#include "server/http_reply.h"

#include "server/http_error.h"

namespace ddtree {
namespace {

class ReplyHandle final : public HttpReply {
 public:
  explicit ReplyHandle(std::shared_ptr<ReplyState> state) : state_(std::move(state)) {}
  ~ReplyHandle() override { state_->abandon(); }

  void send(int status, std::string content_type, std::string body, HttpHeaders headers) override {
    state_->send(status, std::move(content_type), std::move(body), std::move(headers));
  }
  void start_stream() override { state_->start_stream(); }
  void event(std::string data) override { state_->event(data); }
  void finish() override { state_->finish(); }
  void on_gone(std::function<void()> call) override { state_->on_gone(std::move(call)); }
  void note(LogField field) override { state_->note(std::move(field)); }

 private:
  const std::shared_ptr<ReplyState> state_;
};

}  // namespace

ReplyState::ReplyState(size_t outbound_bytes, Post post, std::function<void()> wake)
    : outbound_bytes_(outbound_bytes), post_(std::move(post)), wake_(std::move(wake)) {}

void ReplyState::send(int status, std::string content_type, std::string body, HttpHeaders headers) {
  std::function<void()> unused;  // destroyed without the lock: it may hold the reply itself
  std::unique_lock lock(mutex_);
  CHECK(stage_ == Stage::kOpen);
  unused.swap(on_gone_);
  put_whole(status, std::move(content_type), std::move(body), std::move(headers));
  wake_outside(lock);
}

void ReplyState::put_whole(int status, std::string content_type, std::string body, HttpHeaders headers) {
  stage_ = Stage::kFinished;
  head_.status = status;
  head_.content_type = std::move(content_type);
  head_.headers = std::move(headers);
  if (!gone_) out_ = std::move(body);
}

void ReplyState::start_stream() {
  std::unique_lock lock(mutex_);
  CHECK(stage_ == Stage::kOpen);
  stage_ = Stage::kStream;
  stream_ = true;
  head_.status = 200;
  head_.content_type = "text/event-stream; charset=utf-8";
  head_.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  wake_outside(lock);
}

void ReplyState::event(std::string_view data) {
  CHECK(data.find_first_of("\r\n") == data.npos);
  std::unique_lock lock(mutex_);
  CHECK(stage_ == Stage::kStream);
  if (gone_ || broken_) return;
  if (out_.size() + taken_ + data.size() > outbound_bytes_) {
    broken_ = true;
    out_.clear();
  } else {
    out_.append("data: ").append(data).append("\n\n");
  }
  wake_outside(lock);
}

void ReplyState::finish() {
  std::function<void()> unused;
  std::unique_lock lock(mutex_);
  CHECK(stage_ == Stage::kStream);
  unused.swap(on_gone_);
  stage_ = Stage::kFinished;
  wake_outside(lock);
}

void ReplyState::on_gone(std::function<void()> call) {
  std::unique_lock lock(mutex_);
  if (stage_ == Stage::kFinished) return;
  if (!gone_) {
    on_gone_ = std::move(call);
    return;
  }
  lock.unlock();
  post_(std::move(call));
}

void ReplyState::note(LogField field) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(field));
}

void ReplyState::abandon() {
  std::function<void()> unused;
  std::unique_lock lock(mutex_);
  if (stage_ == Stage::kFinished) return;
  unused.swap(on_gone_);
  if (stage_ == Stage::kOpen) {
    put_whole(500, "application/json", error_json({500, "internal", "the request was dropped", ""}), {});
  } else {
    stage_ = Stage::kFinished;
    broken_ = true;
  }
  wake_outside(lock);
}

// The call it posts may run at once on another thread, and the last of us may be gone behind it.
void ReplyState::wake_outside(std::unique_lock<std::mutex>& lock) {
  if (waking_ || gone_) return;
  waking_ = true;
  lock.unlock();
  post_(wake_);
}

bool ReplyState::awake() {
  const std::lock_guard lock(mutex_);
  waking_ = false;
  return broken_;
}

ReplyState::Output ReplyState::take() {
  const std::lock_guard lock(mutex_);
  Output output;
  if (stage_ == Stage::kOpen) return output;
  if (!begun_) output = std::move(head_);
  output.begun = !begun_;
  begun_ = true;
  output.stream = stream_;
  output.done = stage_ == Stage::kFinished;
  output.broken = broken_;
  output.body = std::exchange(out_, {});
  taken_ += output.body.size();
  return output;
}

void ReplyState::written() {
  const std::lock_guard lock(mutex_);
  taken_ = 0;
}

bool ReplyState::decided() {
  const std::lock_guard lock(mutex_);
  return stage_ == Stage::kFinished;
}

void ReplyState::lose() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    out_.clear();
    call = std::exchange(on_gone_, {});
  }
  if (call) call();
}

std::vector<LogField> ReplyState::take_notes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

std::shared_ptr<HttpReply> make_reply(std::shared_ptr<ReplyState> state) {
  return std::make_shared<ReplyHandle>(std::move(state));
}

}  // namespace ddtree
