// Greedy completions of the demo pair over the API are the tokens that PyTorch chose, in every mode, together and
// alone.
#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <thread>

#include "golden/demo.h"
#include "server/openai_support.h"

namespace ddtree {
namespace {

constexpr int kTokens = 16;
const std::string kDemoTarget = DDTREE_SOURCE_DIR "/models/demo/target";

// Keeps the reply until it is finished, on whatever thread.
class WaitingReply final : public HttpReply {
 public:
  void send(int sent, std::string, std::string text, HttpHeaders) override {
    const std::lock_guard lock(mutex_);
    status_ = sent;
    body_ = std::move(text);
    done_ = true;
    wake_.notify_one();
  }
  void start_stream() override {}
  void event(std::string data) override {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(data));
  }
  void finish() override { send(200, "", "", {}); }
  void on_gone(std::function<void()>) override {}
  void note(LogField) override {}

  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return done_; });
  }
  int status() const { return status_; }
  const std::string& body() const { return body_; }
  const std::vector<std::string>& events() const { return events_; }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  int status_ = 0;
  std::string body_;
  std::vector<std::string> events_;
};

struct DemoApi {
  DemoApi()
      : tokenizer(*Tokenizer::load(kDemoTarget)),
        engine(DemoPair::on("cpu").engine(4, 0, true, true)),
        source(engine),
        context(source, tokenizer, 64) {
    context.max_context = 1024;
    routes = make_api_routes(context);
  }

  std::shared_ptr<WaitingReply> post(size_t route, const std::string& body) {
    auto request = std::make_shared<HttpRequest>();
    request->body = body;
    auto reply = std::make_shared<WaitingReply>();
    routes[route].handle(request, reply);
    return reply;
  }

  Tokenizer tokenizer;
  Engine engine;
  EngineSource source;
  ApiContext context;
  std::vector<Route> routes;
};

std::string list(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return "[" + text + "]";
}

std::string body(int prompt, const std::string& more) {
  return R"({"temperature":0,"ignore_eos":true,"max_tokens":)" + std::to_string(kTokens) +
         R"(,"return_token_ids":true,)" + R"("prompt":)" + list(golden_prompt(prompt)) + more + "}";
}

void append_ids(const std::string& json, std::map<int64_t, std::vector<int32_t>>& by_choice) {
  const JsonDocument document = *parse_json(json, "reply");
  for (const JsonValue choice : elements(*document.root().get("choices")))
    for (const JsonValue id : elements(*choice.get("token_ids")))
      by_choice[*choice.get_int("index")].push_back(static_cast<int32_t>(*id.as_int()));
}

std::vector<int32_t> golden(int prompt) {
  std::vector<int32_t> ids = golden_greedy(prompt);
  ids.resize(kTokens);
  return ids;
}

TEST(OpenAiGolden, EveryModeGivesTheGoldenTokens) {
  DemoApi api;
  std::vector<std::pair<int, std::shared_ptr<WaitingReply>>> replies;
  for (int prompt = 0; prompt < 2; ++prompt)  // all at once
    for (const std::string how :
         {R"("off"})", R"("chain"},"stream":true)", R"("tree"},"n":2)", R"("tree"},"stream":true)"})
      replies.emplace_back(prompt, api.post(0, body(prompt, R"(,"speculation":{"mode":)" + how)));
  for (const auto& [prompt, reply] : replies) {
    reply->wait();
    EXPECT_EQ(reply->status(), 200) << reply->body();
    std::map<int64_t, std::vector<int32_t>> ids;
    if (!reply->body().empty()) append_ids(reply->body(), ids);
    for (const std::string& event : reply->events())
      if (event != "[DONE]") append_ids(event, ids);
    EXPECT_FALSE(ids.empty());
    for (const auto& [index, choice] : ids) EXPECT_EQ(choice, golden(prompt)) << prompt << " choice " << index;
  }
}

TEST(OpenAiGolden, TimingsAddUp) {
  DemoApi api;
  const auto first = api.post(0, body(0, R"(,"timings":true)"));
  first->wait();
  const auto again = api.post(0, body(0, R"(,"timings":true,"speculation":{"mode":"off"})"));
  again->wait();
  const JsonDocument tree = *parse_json(first->body(), "reply"), plain = *parse_json(again->body(), "reply");
  const JsonValue t = *tree.root().get("timings"), p = *plain.root().get("timings");
  const int64_t steps = *t.get_int("verify_n"), accepted = *t.get_int("draft_n_accepted");
  EXPECT_EQ(*t.get_string("mode"), "tree");
  EXPECT_TRUE(t.find("not_speculating")->is_null());
  EXPECT_EQ(*t.get_int("predicted_n"), kTokens);
  EXPECT_GE(1 + steps + accepted, kTokens);  // what a limit cut off the last pass is not counted
  EXPECT_LE(1 + steps + accepted, kTokens + 16);
  EXPECT_GT(accepted, 0);
  EXPECT_DOUBLE_EQ(*t.get_double("accept_len"), static_cast<double>(steps + accepted) / static_cast<double>(steps));
  int64_t passes = 0;
  for (const JsonValue count : elements(*t.get("accept_hist"))) passes += *count.as_int();
  EXPECT_EQ(passes, steps);
  EXPECT_EQ(*p.get_string("mode"), "off");
  EXPECT_EQ(*p.get_string("not_speculating"), "the request turned speculation off");
  EXPECT_EQ(*p.get_int("verify_n"), kTokens - 1);
  EXPECT_EQ(*p.get_int("draft_n"), 0);
  EXPECT_EQ(*p.get_double("accept_len"), 1);
  // The second time the prompt's whole pages are there already.
  const int64_t prompt = std::ssize(golden_prompt(0)), cached = *p.get_int("cache_n");
  EXPECT_EQ(cached, (prompt - 1) / kPageRows * kPageRows);
  EXPECT_EQ(*p.get_int("prompt_n"), prompt - cached);
  EXPECT_EQ(*plain.root().get("usage")->get("prompt_tokens_details")->get_int("cached_tokens"), cached);
}

}  // namespace
}  // namespace ddtree
