// A server without a model, for clients' tests: it replies with what the last user's message says, control tokens
// included, a few tokens a step.
//
// usage: scripted_server [CHAT_TEMPLATE]     prints its port; serves until standard input ends. The key is "secret".
#include <algorithm>
#include <chrono>
#include <iostream>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <utility>

#include "server/api.h"
#include "server/byte_tokenizer.h"

namespace ddtree {
namespace {

constexpr int32_t kContext = 8192;
constexpr auto kStepTime = std::chrono::milliseconds(2);

// What stands between the last user's marker and the end of that message.
std::vector<int32_t> script_of(const std::vector<int32_t>& prompt) {
  const auto user = std::find(prompt.rbegin(), prompt.rend(), *byte_tokenizer().special_id("<|im_user|>")).base();
  const auto begin = std::find(user, prompt.end(), *byte_tokenizer().special_id("<|im_middle|>"));
  const auto end = std::find(begin, prompt.end(), end_id());
  const std::vector<int32_t> message(begin == prompt.end() ? begin : begin + 1, end);
  std::vector<int32_t> script = script_ids(byte_tokenizer().decode(message));
  script.push_back(end_id());
  return script;
}

class EchoSource final : public TokenSource {
 public:
  EchoSource() : thread_([this] { loop(); }) {}
  ~EchoSource() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    thread_.join();
  }

  Result<RequestId> submit(Request request, EventSink sink) override {
    const std::lock_guard lock(mutex_);
    std::vector<int32_t> script = script_of(request.prompt);
    running_[++last_] = {std::move(request), std::move(sink), std::move(script)};
    return last_;
  }
  void cancel(RequestId id) override {
    const std::lock_guard lock(mutex_);
    if (const auto it = running_.find(id); it != running_.end()) it->second.cancelled = true;
  }

 private:
  struct Running {
    Request request;
    EventSink sink;
    std::vector<int32_t> script;
    size_t at = 0;
    bool cancelled = false;  // guarded by mutex_
  };

  void loop() {
    for (int steps = 0;; ++steps) {
      std::this_thread::sleep_for(kStepTime);
      std::vector<std::tuple<RequestId, Running*, bool>> now;  // only this thread removes any
      {
        const std::lock_guard lock(mutex_);
        if (stop_) return;
        for (auto& [id, running] : running_) now.emplace_back(id, &running, running.cancelled);
      }
      for (const auto& [id, running, cancelled] : now)
        if (step(*running, cancelled, 1 + steps % 4)) finish(id);
    }
  }

  // True if the text ends.
  static bool step(Running& running, bool cancelled, int tokens) {
    Event event;
    if (cancelled) event.finish = FinishReason::kCancelled;
    for (; event.finish == FinishReason::kNone && tokens > 0; --tokens) {
      const int32_t id = running.script[running.at++];
      event.tokens.emplace_back().id = id;
      if (id == end_id() || running.request.stops(id))
        event.finish = FinishReason::kStop;
      else if (std::cmp_equal(running.at, running.request.max_tokens))
        event.finish = FinishReason::kLength;
    }
    const bool ends = event.finish != FinishReason::kNone;
    if (ends) event.stats.emplace().prompt_tokens = static_cast<int32_t>(running.request.prompt.size());
    running.sink(std::move(event));
    return ends;
  }

  void finish(RequestId id) {
    const std::lock_guard lock(mutex_);
    running_.erase(id);
  }

  std::mutex mutex_;
  std::map<RequestId, Running> running_;  // guarded by mutex_, as are the next two
  RequestId last_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

int serve(std::string_view chat_template) {
  EchoSource source;
  ApiContext context(source, byte_tokenizer(), 64);
  context.max_context = kContext;
  context.chat.emplace(*ChatRenderer::create(byte_tokenizer(), *find_chat_family(chat_template)));
  HttpOptions options;
  options.port = 0;
  CHECK(options.keys.add("secret", "key").ok());
  std::unique_ptr<HttpServer> server = *HttpServer::listen(std::move(options), make_api_routes(context));
  server->ready({});
  std::thread thread([&] { server->run(); });
  std::cout << server->port() << std::endl;
  std::cin.ignore(std::numeric_limits<std::streamsize>::max());
  server->stop();
  thread.join();
  return 0;
}

}  // namespace
}  // namespace ddtree

int main(int argc, char** argv) { return ddtree::serve(argc > 1 ? argv[1] : "kimi-k2.5"); }
