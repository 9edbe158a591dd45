// What depends on time: steps, clients that leave, failures, full queues.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <thread>

#include "server/openai_support.h"

namespace ddtree {
namespace {

constexpr std::string_view kCompletions = "/v1/completions";
constexpr std::string_view kChat = "/v1/chat/completions";

// What a client has at the end, from a whole reply or from a stream.
struct Joined {
  std::string content, reasoning, finish, stop_reason, tokens, logprobs, offsets, usage;
  std::vector<std::string> ids, names, arguments;
  bool operator==(const Joined&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Joined& j) {
  return out << "content " << j.content << "|reasoning " << j.reasoning << "|calls " << j.ids.size() << "|finish "
             << j.finish << "|stop " << j.stop_reason << "|tokens " << j.tokens << "|logprobs " << j.logprobs
             << "|usage " << j.usage;
}

std::string text_of(JsonValue object, std::string_view key) {
  const std::optional<JsonValue> value = object.find(key);
  return value && value->is_string() ? std::string(*value->as_string()) : "";
}

void join_calls(JsonValue said, Joined& out) {
  const std::optional<JsonValue> calls = said.find("tool_calls");
  if (!calls) return;
  size_t at = 0;
  for (const JsonValue call : elements(*calls)) {
    const Result<int64_t> index = call.get_int("index");  // of streams only
    const size_t i = index.ok() ? static_cast<size_t>(*index) : at++;
    ASSERT_LE(i, out.ids.size());
    const bool begins = call.find("id").has_value();
    ASSERT_EQ(begins, i == out.ids.size());
    if (begins) {
      const std::string id = text_of(call, "id");
      out.ids.push_back(id.starts_with("call_") ? "random" : id);
      out.names.push_back(text_of(*call.get("function"), "name"));
      out.arguments.emplace_back();
    }
    out.arguments[i] += text_of(*call.get("function"), "arguments");
  }
}

void join_logprobs(JsonValue choice, Joined& out) {
  const JsonValue logprobs = *choice.find("logprobs");
  if (logprobs.is_null()) return;
  if (const auto content = logprobs.find("content")) {
    for (const JsonValue token : elements(*content)) out.logprobs += text_of(token, "token") + ",";
    return;
  }
  for (const JsonValue token : elements(*logprobs.get("tokens"))) out.logprobs += std::string(*token.as_string()) + ",";
  for (const JsonValue at : elements(*logprobs.get("text_offset"))) out.offsets += at.text() + ",";
}

void join(const std::string& text, Joined& out) {
  const JsonDocument document = *parse_json(text, "reply");
  const JsonValue root = document.root();
  if (const auto usage = root.find("usage"); usage && !usage->is_null())
    out.usage = usage->find("completion_tokens")->text() + " " +
                usage->find("completion_tokens_details")->find("reasoning_tokens")->text();
  for (const JsonValue choice : elements(*root.get("choices"))) {
    const std::optional<JsonValue> message = choice.find("message"), delta = choice.find("delta");
    const JsonValue said = message ? *message : delta ? *delta : choice;
    out.content += text_of(said, message || delta ? "content" : "text");
    out.reasoning += text_of(said, "reasoning_content");
    join_calls(said, out);
    if (const auto ids = choice.find("token_ids"))
      for (const JsonValue id : elements(*ids)) out.tokens += id.text() + ",";
    join_logprobs(choice, out);
    if (!text_of(choice, "finish_reason").empty()) {
      EXPECT_EQ(out.finish, "");
      out.finish = text_of(choice, "finish_reason");
      out.stop_reason = choice.find("stop_reason")->text();
    }
  }
}

Joined joined(const RecordingReply& reply) {
  Joined out;
  EXPECT_TRUE(reply.finished);
  if (!reply.streamed) {
    join(reply.body, out);
    return out;
  }
  EXPECT_EQ(reply.events.back(), "[DONE]");
  for (size_t i = 0; i + 1 < reply.events.size(); ++i) join(reply.events[i], out);
  return out;
}

Joined answer(std::string_view path, const std::string& body, const std::vector<int32_t>& script,
              const std::vector<int>& steps) {
  ScriptedApi api;
  const auto reply = api.call("POST", path, body);
  if (api.source.running.empty()) {
    ADD_FAILURE() << reply->body;
    return {};
  }
  api.source.play(0, script, steps);
  if (!api.source.running[0].ended) api.source.play(0, {end_id()}, {1});
  return joined(*reply);
}

const std::vector<std::string> kWords = {"<think>",
                                         "</think>",
                                         "<|tool_calls_section_begin|>",
                                         "<|tool_calls_section_end|>",
                                         "<|tool_call_begin|>",
                                         "<|tool_call_argument_begin|>",
                                         "<|tool_call_end|>",
                                         "functions.f:0",
                                         "{\"a\": \"é\"}",
                                         "ab",
                                         "abc",
                                         " ",
                                         "\n",
                                         "😀",
                                         "\xf0",
                                         "\x80",
                                         "<|im_user|>",
                                         "<|im_end|>"};

std::vector<int32_t> random_script() {
  const auto words = *rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(kWords));
  std::vector<int32_t> script;
  for (const std::string& word : words) {
    if (word.size() == 1 && (word[0] & 0x80)) {
      script.push_back(static_cast<uint8_t>(word[0]));
      continue;
    }
    const std::vector<int32_t> ids = script_ids(word);
    script.insert(script.end(), ids.begin(), ids.end());
  }
  return script;
}

std::string random_options() {
  std::string options = *rc::gen::element<std::string>("", R"(,"stop":["bc","\n","a a"])", R"(,"stop":["😀b","f"])");
  options += *rc::gen::element<std::string>("", R"(,"include_stop_str_in_output":true)");
  options += *rc::gen::element<std::string>("", R"(,"skip_special_tokens":false)");
  options += *rc::gen::element<std::string>("", R"(,"max_tokens":7)");
  options += *rc::gen::element<std::string>("", R"(,"max_tokens":9,"min_tokens":4)");
  return options;
}

// A field that is there twice is a request's mistake.
bool doubled(const std::string& options) {
  const size_t first = options.find("max_tokens");
  return first != std::string::npos && options.find("max_tokens", first + 1) != std::string::npos;
}

void check_partitions(std::string_view path, const std::string& body) {
  const std::string options = random_options();
  RC_PRE(!doubled(options));
  const std::vector<int32_t> script = random_script();
  const auto steps = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 12)));
  const std::string whole = body + options + R"(,"return_token_ids":true)";
  const std::string stream = whole + R"(,"stream":true,"stream_options":{"include_usage":true}})";
  const Joined expected = answer(path, whole + "}", script, {1});
  RC_ASSERT(answer(path, whole + "}", script, steps) == expected);
  RC_ASSERT(answer(path, stream, script, {1}) == expected);
  RC_ASSERT(answer(path, stream, script, steps) == expected);
}

RC_GTEST_PROP(OpenAiStream, CompletionsDoNotDependOnSteps, ()) {
  check_partitions(kCompletions, R"({"prompt":"x","max_tokens_unused":1,"logprobs":0)");
}

RC_GTEST_PROP(OpenAiStream, ChatsDoNotDependOnSteps, ()) {
  const std::string more = *rc::gen::element<std::string>("", R"(,"parallel_tool_calls":false)",
                                                          R"(,"tool_choice":"none")", R"(,"tool_choice":"required")");
  check_partitions(kChat, R"({"messages":[{"role":"user","content":"U"}],"logprobs":true,
      "tools":[{"type":"function","function":{"name":"f"}}])" +
                              more);
}

TEST(OpenAiStream, ChoicesInterleave) {
  ScriptedApi api;
  const auto reply = api.call("POST", kCompletions, R"({"prompt":"x","n":2,"stream":true,"max_tokens":2})");
  api.source.step(1, script_ids("a"));
  api.source.step(0, script_ids("bc"));
  EXPECT_FALSE(reply->finished);
  api.source.step(1, script_ids("d"));
  EXPECT_TRUE(reply->finished);
  ASSERT_EQ(reply->events.size(), 4u);
  const JsonDocument first = *parse_json(reply->events[0], "event");
  const std::string id = text_of(first.root(), "id");
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NE(reply->events[i].find('"' + id + '"'), std::string::npos);  // one id a stream
  EXPECT_EQ(api.context.admission.used(), 2);
  api.source.running.clear();  // as an engine forgets what has ended
  EXPECT_EQ(api.context.admission.used(), 0);
}

std::string error_code(const std::string& json) {
  const Result<JsonDocument> document = parse_json(json, "");
  if (!document.ok() || !document->root().find("error")) return "none: " + json;
  return text_of(*document->root().find("error"), "code");
}

TEST(OpenAiStream, AFailureBeforeTheReplyIsAStatus) {
  for (const auto& [error, status, code] : std::vector<std::tuple<Error, int, std::string>>{
           {{Code::kInvalidArgument, "stop_token_ids: token 9999 is outside the vocabulary"}, 400, "invalid_value"},
           {{Code::kExhausted, "the engine has 4096 new requests waiting"}, 429, "queue_full"},
           {{Code::kDeviceLost, "cuda: illegal address in /secret/path"}, 503, "device_lost"},
           {{Code::kCorrupt, "NaN in /secret/path"}, 500, "internal"}}) {
    for (const std::string stream : {"false", "true"}) {
      ScriptedApi api;
      api.source.refusal = error;
      api.source.refused = 1;  // the second choice: the first must not go on
      const auto reply = api.call("POST", kCompletions, R"({"prompt":"x","n":3,"stream":)" + stream + "}");
      EXPECT_EQ(reply->status, status);
      EXPECT_EQ(error_code(reply->body), code);
      EXPECT_EQ(reply->body.find("secret"), std::string::npos);
      EXPECT_TRUE(reply->finished);
      EXPECT_FALSE(reply->streamed);
      ASSERT_EQ(api.source.running.size(), 1u);
      EXPECT_TRUE(api.source.running[0].cancelled);
      api.source.end(0, FinishReason::kCancelled);
    }
  }
}

TEST(OpenAiStream, AFailureWhileItRunsEndsAllChoices) {
  for (const bool stream : {false, true}) {
    ScriptedApi api;
    const auto reply =
        api.call("POST", kCompletions, std::string(R"({"prompt":"x","n":2,"stream":)") + (stream ? "true}" : "false}"));
    api.source.step(0, script_ids("a"));
    api.source.end(1, FinishReason::kError, Error{Code::kCorrupt, "logits of /secret are NaN"});
    EXPECT_TRUE(reply->finished);
    EXPECT_TRUE(api.source.running[0].cancelled);
    EXPECT_FALSE(api.source.running[1].cancelled);
    api.source.end(0, FinishReason::kCancelled);
    if (!stream) {
      EXPECT_EQ(reply->status, 500);
      EXPECT_EQ(error_code(reply->body), "internal");
      continue;
    }
    ASSERT_EQ(reply->events.size(), 3u);
    EXPECT_EQ(error_code(reply->events[1]), "internal");
    EXPECT_EQ(reply->events[1].find("secret"), std::string::npos);
    EXPECT_EQ(reply->events[2], "[DONE]");
  }
}

TEST(OpenAiStream, AnEngineThatStopsSaysSo) {
  ScriptedApi api;
  const auto whole = api.call("POST", kCompletions, R"({"prompt":"x"})");
  const auto stream = api.call("POST", kCompletions, R"({"prompt":"x","stream":true})");
  api.source.end(0, FinishReason::kCancelled);
  api.source.end(1, FinishReason::kCancelled);
  EXPECT_EQ(whole->status, 503);
  EXPECT_EQ(error_code(whole->body), "draining");
  EXPECT_EQ(error_code(stream->events[0]), "draining");
}

TEST(OpenAiStream, AClientThatLeavesCancelsWhatStillRuns) {
  for (const std::string stream : {"false", "true"}) {
    ScriptedApi api;
    const auto reply = api.call("POST", kCompletions, R"({"prompt":"x","n":3,"max_tokens":1,"stream":)" + stream + "}");
    api.source.step(0, script_ids("a"));
    const size_t events = reply->events.size();
    reply->lose_client();
    EXPECT_FALSE(api.source.running[0].cancelled);
    EXPECT_TRUE(api.source.running[1].cancelled && api.source.running[2].cancelled);
    api.source.step(1, script_ids("b"));  // a step that was under way
    api.source.end(2, FinishReason::kCancelled);
    EXPECT_EQ(reply->events.size(), events);
    EXPECT_EQ(reply->finished, false);
  }
}

TEST(OpenAiStream, AClientThatLeavesLateCancelsNothing) {
  ScriptedApi api;
  const auto reply = api.call("POST", kCompletions, R"({"prompt":"x","max_tokens":1})");
  api.source.step(0, script_ids("a"));
  reply->lose_client();
  EXPECT_FALSE(api.source.running[0].cancelled);
}

TEST(OpenAiStream, MoreThanTheQueueHoldsIsRefused) {
  ScriptedApi api;
  std::vector<std::shared_ptr<RecordingReply>> replies;
  for (int i = 0; i < 12; ++i)
    replies.push_back(api.call("POST", kCompletions, R"({"prompt":"x","n":8,"stream":true})"));
  EXPECT_EQ(api.source.running.size(), 96u);
  const auto refused = api.call("POST", kCompletions, R"({"prompt":"x","n":5,"stream":true})");
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(error_code(refused->body), "queue_full");
  EXPECT_EQ(api.call("POST", kCompletions, R"({"prompt":"x","n":4,"stream":true})")->status, 200);
}

TEST(OpenAiStream, LongListsAreRefused) {
  std::string ids = "0", biases = R"("0":1)";
  for (int i = 1; i <= 1024; ++i) {
    ids += ",0";
    biases += ",\"" + std::to_string(i) + "\":1";
  }
  for (const std::string& field : {R"("stop_token_ids":[)" + ids + "]", R"("logit_bias":{)" + biases + "}"}) {
    ScriptedApi api;
    EXPECT_EQ(error_code(api.call("POST", kCompletions, R"({"prompt":"x",)" + field + "}")->body), "invalid_value");
  }
}

TEST(OpenAiStream, LongRequestsAreReadElsewhere) {
  ScriptedApi api;
  const std::string long_prompt(100'000, 'x');
  const auto reply = api.call("POST", "/tokenize", R"({"prompt":")" + long_prompt + "\"}");
  while (!reply->finished) std::this_thread::yield();
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(*parse_json(reply->body, "")->root().get_int("count"), 100'000);
}

struct Observed final : GenerationObserver {
  void on_first_token(double) override { ++first_tokens; }
  void on_step(double, int tokens) override { steps.push_back(tokens); }
  void on_end(const GenerationReport& report) override {
    outcomes.emplace_back(report.outcome);
    usage = report.usage;
  }
  int first_tokens = 0;
  std::vector<int> steps;
  std::vector<std::string> outcomes;
  Usage usage;
};

TEST(OpenAiStream, ObserversSeeEveryRequestOnce) {
  ScriptedApi api;
  Observed observed;
  api.context.observer = &observed;
  const auto reply = api.call("POST", kCompletions, R"({"prompt":"xy","max_tokens":6})");
  api.source.play(0, script_ids("abcdef"), {1, 3, 2});
  EXPECT_EQ(observed.first_tokens, 1);
  EXPECT_EQ(observed.steps, (std::vector<int>{3, 2}));
  EXPECT_EQ(observed.usage.prompt, 2);
  EXPECT_EQ(observed.usage.completion, 6);
  bool noted = false;
  for (const LogField& note : reply->notes)
    noted = noted || (note.key == "completion_tokens" && std::get<int64_t>(note.value) == 6);
  EXPECT_TRUE(noted);
  api.call("POST", kCompletions, R"({"prompt":"x"})")->lose_client();
  api.source.end(1, FinishReason::kCancelled);
  api.call("POST", kCompletions, R"({"prompt":""})");
  EXPECT_EQ(observed.outcomes, (std::vector<std::string>{"length", "cancelled", "error"}));
}

}  // namespace
}  // namespace ddtree
