// One request while it runs: its prompts times n choices in the engine, their events to one HTTP reply.
//
// start() is called on the server's thread, events come on the engine's. A Generation lives as long as the engine knows
// one of its choices.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "server/choice_text.h"
#include "server/http.h"
#include "server/http_error.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/token_source.h"
#include "text/stop_strings.h"

namespace ddtree {

struct PromptPlan {
  std::vector<int32_t> ids;
  std::string echo;  // text that the answer begins with
};

// A request that has been checked, as far as that is possible without the engine.
struct GenerationPlan {
  ReplyHead head;
  GenerationOptions options;
  int32_t max_tokens = 1;  // where the request says nothing
  std::vector<PromptPlan> prompts;
  // Of a chat:
  std::optional<ReplyParser> parser;
  std::vector<int32_t> begun;  // the reply's first ids, which stand in the prompt
  bool ends_after_call = false;
};

// How a request went, for metrics.
struct GenerationReport {
  std::string_view outcome;  // "stop", "length", "tool_calls" of the last choice; "cancelled", "error"
  Usage usage;
  Timings timings;
};

// Called on the engine's thread, or where it says so on the server's.
class GenerationObserver {
 public:
  virtual ~GenerationObserver() = default;
  virtual void on_first_token(double /*seconds since the request came*/) {}
  virtual void on_step(double /*seconds since the choice's tokens before*/, int /*tokens*/) {}
  virtual void on_end(const GenerationReport&) {}  // of every request that was started; on either thread
};

// How many choices may be in the engine at once. The engine's own queue must have room for as many, since it refuses
// too late for an HTTP status.
class Admission {
 public:
  explicit Admission(int64_t limit) : limit_(limit) {}
  bool enter(int64_t count) {
    if (used_.fetch_add(count) + count <= limit_) return true;
    used_ -= count;
    return false;
  }
  void leave(int64_t count) { used_ -= count; }
  int64_t used() const { return used_; }
  int64_t limit() const { return limit_; }

 private:
  std::atomic<int64_t> used_{0};
  int64_t limit_;
};

struct GenerationContext {
  TokenSource& source;
  const Tokenizer& tokenizer;
  Admission& admission;
  GenerationObserver* observer = nullptr;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // Answers in any case. The context's parts must outlive all generations.
  static void start(const GenerationContext& context, GenerationPlan plan, StopStrings stops,
                    std::shared_ptr<HttpReply> reply);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  struct Choice {
    Choice(ChoiceText assembled, int32_t index) : text(std::move(assembled)) { total.index = index; }

    ChoiceText text;
    std::vector<int64_t> offsets;  // of the tokens since the last event that `text` has taken
    ChoiceOutput total;            // all of it; of a stream, nothing
    std::optional<RequestId> id;
    int64_t tokens = 0, reasoning_tokens = 0;
    std::optional<Clock::time_point> last_token;
    RequestStats stats;
    bool done = false;
  };

  Generation(const GenerationContext& context, GenerationPlan plan, StopStrings stops, std::shared_ptr<HttpReply> reply,
             int64_t admitted);
  void make_choices();
  void run();
  Status submit_all();
  Request request_of(size_t index);
  void begin_stream();
  void begin_replies();

  bool take_token(size_t index, int32_t id);
  void on_event(size_t index, Event&& event);
  ChoiceOutput take_output(Choice& choice, Event& event);
  void set_finish(Choice& choice, ChoiceOutput& output, FinishReason reason, std::optional<int32_t> stop_id);
  void send_output(ChoiceOutput output, bool last);
  void count_time(Choice& choice, size_t tokens);
  void complete();
  void fail(const HttpError& error);
  void on_gone();
  void cancel_rest();
  void report(std::string_view outcome);
  Usage usage() const;
  Extras chunk_extras(const Usage& running) const;
  Timings timings() const;

  const GenerationContext context_;
  const GenerationPlan plan_;
  const StopStrings stops_;
  const ReplyWriter writer_;
  const int64_t admitted_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Choice> choices_;  // by prompt, then by number

  std::mutex mutex_;  // guards what follows, and the choices' ids and counts
  std::shared_ptr<HttpReply> reply_;
  bool streaming_ = false;
  bool over_ = false;
  size_t done_ = 0;
  std::string_view outcome_;
  std::optional<Clock::time_point> first_token_, last_token_;
};

}  // namespace ddtree
