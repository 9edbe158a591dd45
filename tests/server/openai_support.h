// The API without a network and without a model: replies that record, tokens from scripts, a vocabulary of bytes.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api.h"
#include "server/byte_tokenizer.h"

namespace ddtree {

// A reply that nobody reads but the test. "finished" also after send().
class RecordingReply final : public HttpReply {
 public:
  void send(int status, std::string content_type, std::string body, HttpHeaders headers) override;
  void start_stream() override;
  void event(std::string data) override;
  void finish() override;
  void on_gone(std::function<void()> call) override;
  void note(LogField field) override;

  void lose_client();  // calls what on_gone() was given

  int status = 0;  // 200 from start_stream() on
  bool streamed = false;
  std::atomic<bool> finished{false};  // set last: who sees it may read the rest from another thread
  std::string content_type, body;
  std::vector<std::string> events;
  std::vector<LogField> notes;

 private:
  std::function<void()> gone_;
};

// Ends texts as the engine does: at end tokens, at what the request's `stops` says, at max_tokens.
class ScriptedSource final : public TokenSource {
 public:
  struct Running {
    Request request;
    EventSink sink;
    RequestStats stats;
    bool ended = false;
    bool cancelled = false;
  };

  Result<RequestId> submit(Request request, EventSink sink) override;
  void cancel(RequestId id) override;

  // One event with these tokens, as far as the text goes; the first of a text comes from its prompt, the others from
  // verification passes. False once the text has ended.
  bool step(size_t index, const std::vector<int32_t>& ids);
  // All of `ids`, in steps of these sizes, the last of them again and again.
  void play(size_t index, const std::vector<int32_t>& ids, const std::vector<int>& sizes);
  void end(size_t index, FinishReason reason, std::optional<Error> error = {});

  std::vector<Running> running;  // in the order of submission; ids count from 1
  std::optional<Error> refusal;  // of the submission numbered `refused`
  size_t refused = 0;
};

// A server's API on scripted tokens.
struct ScriptedApi {
  // `chat_template`: a name of find_chat_family(), or "none".
  explicit ScriptedApi(std::string_view chat_template = "kimi-k2.5");

  std::shared_ptr<RecordingReply> call(std::string_view method, std::string_view path, std::string_view body);

  ScriptedSource source;
  ApiContext context;
  std::vector<Route> routes;
};

// For loops, whose range must own what it walks over.
inline JsonElements elements(JsonValue array) { return *array.elements(); }
inline JsonMembers members(JsonValue object) { return *object.members(); }

// Why `value` is not what `expected` describes; empty if it is. Objects may have more members than expected; "$any"
// stands for any value, "$absent" for a member that must not be there.
std::string mismatch(JsonValue value, JsonValue expected);

}  // namespace ddtree
