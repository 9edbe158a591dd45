#include "server/openai_support.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "text/chat_json.h"

namespace ddtree {
namespace {

constexpr int32_t kContext = 512;

}  // namespace

void RecordingReply::send(int sent, std::string type, std::string text, HttpHeaders) {
  EXPECT_FALSE(finished || streamed);
  status = sent;
  content_type = std::move(type);
  body = std::move(text);
  finished = true;
}

void RecordingReply::start_stream() {
  EXPECT_FALSE(finished || streamed);
  streamed = true;
  status = 200;
}

void RecordingReply::event(std::string data) {
  EXPECT_TRUE(streamed && !finished);
  EXPECT_EQ(data.find('\n'), std::string::npos);
  events.push_back(std::move(data));
}

void RecordingReply::finish() {
  EXPECT_TRUE(streamed && !finished);
  finished = true;
}

void RecordingReply::on_gone(std::function<void()> call) { gone_ = std::move(call); }
void RecordingReply::note(LogField field) { notes.push_back(std::move(field)); }
void RecordingReply::lose_client() { gone_(); }

Result<RequestId> ScriptedSource::submit(Request request, EventSink sink) {
  if (refusal && running.size() == refused) return *refusal;
  if (request.prompt.empty()) return Error{Code::kInvalidArgument, "prompt: it is empty; give at least one token"};
  if (const Status status = validate(request.sampling, kByteVocab); !status.ok()) return status.error();
  RequestStats stats;
  stats.prompt_tokens = static_cast<int32_t>(request.prompt.size());
  stats.effective_mode = spec_mode_name(request.spec.mode);
  running.push_back({std::move(request), std::move(sink), stats});
  return running.size();
}

void ScriptedSource::cancel(RequestId id) { running[id - 1].cancelled = true; }

bool ScriptedSource::step(size_t index, const std::vector<int32_t>& ids) {
  Running& run = running[index];
  EXPECT_FALSE(run.ended);
  const std::vector<int32_t>& stop_ids = run.request.stop_ids;
  if (run.stats.output_tokens > 0) {
    ++run.stats.steps;
    run.stats.committed += static_cast<int32_t>(ids.size());
    run.stats.drafted += 7;
    ++run.stats.accepted_histogram[std::min(ids.size(), run.stats.accepted_histogram.size() - 1)];
  }
  Event event;
  for (const int32_t id : ids) {
    OutputToken token;
    token.id = id;
    for (int i = 0; i <= run.request.sampling.logprobs; ++i)  // exact in binary, so that texts of them are short
      token.logprobs.push_back({i == 0 ? id : i - 1, i == 0 ? -0.5f : -0.25f * static_cast<float>(i)});
    event.tokens.push_back(std::move(token));
    ++run.stats.output_tokens;
    const bool stops = (id == end_id() && !run.request.ignore_eos) ||
                       std::find(stop_ids.begin(), stop_ids.end(), id) != stop_ids.end() || run.request.stops(id);
    if (!stops && run.stats.output_tokens < run.request.max_tokens) continue;
    event.finish = stops ? FinishReason::kStop : FinishReason::kLength;
    event.stats = run.stats;
    run.ended = true;
    break;
  }
  run.sink(std::move(event));
  return !run.ended;
}

void ScriptedSource::play(size_t index, const std::vector<int32_t>& ids, const std::vector<int>& sizes) {
  auto at = ids.begin();
  for (size_t i = 0; at != ids.end(); ++i) {
    const auto size = std::min<std::ptrdiff_t>(sizes[std::min(i, sizes.size() - 1)], ids.end() - at);
    if (!step(index, {at, at + size})) return;
    at += size;
  }
}

void ScriptedSource::end(size_t index, FinishReason reason, std::optional<Error> error) {
  Event event;
  event.finish = reason;
  event.error = std::move(error);
  event.stats = running[index].stats;
  running[index].ended = true;
  running[index].sink(std::move(event));
}

ScriptedApi::ScriptedApi(std::string_view chat_template) : context(source, byte_tokenizer(), 100) {
  if (chat_template == "none")
    context.no_chat = "its vocabulary has no known control tokens";
  else
    context.chat.emplace(*ChatRenderer::create(byte_tokenizer(), *find_chat_family(chat_template)));
  context.names = {"demo", "an/alias"};
  context.fingerprint = "fp";
  context.max_context = kContext;
  context.bos_id = script_ids("<|im_start|>")[0];
  routes = make_api_routes(context);
}

std::shared_ptr<RecordingReply> ScriptedApi::call(std::string_view method, std::string_view path,
                                                  std::string_view body) {
  auto request = std::make_shared<HttpRequest>();
  request->method = method;
  request->path = path;
  request->body = body;
  auto reply = std::make_shared<RecordingReply>();
  for (const Route& route : routes) {
    const bool any = route.path.ends_with("/*");
    const std::string_view stem = std::string_view(route.path).substr(0, route.path.size() - (any ? 1 : 0));
    if (route.method != method || (any ? !path.starts_with(stem) : path != stem)) continue;
    route.handle(request, reply);
    return reply;
  }
  ADD_FAILURE() << "no route " << path;
  return reply;
}

std::string mismatch(JsonValue value, JsonValue expected) {
  const auto differs = [&] { return value.location() + ": is " + value.text() + ", expected " + tojson(expected); };
  if (expected.is_string() && *expected.as_string() == "$any") return {};
  if (expected.is_object()) {
    if (!value.is_object()) return differs();
    for (const auto [key, wanted] : members(expected)) {
      const std::optional<JsonValue> member = value.find(key);
      const bool absent = wanted.is_string() && *wanted.as_string() == "$absent";
      if (absent != !member) return value.location() + "." + std::string(key) + (absent ? " is there" : " is missing");
      if (absent) continue;
      if (std::string why = mismatch(*member, wanted); !why.empty()) return why;
    }
    return {};
  }
  if (expected.is_array()) {
    if (!value.is_array() || value.elements()->size() != expected.elements()->size()) return differs();
    auto at = value.elements()->begin();
    for (const JsonValue wanted : elements(expected)) {
      if (std::string why = mismatch(*at, wanted); !why.empty()) return why;
      ++at;
    }
    return {};
  }
  if (expected.is_number() && value.is_number() && *expected.as_double() == *value.as_double()) return {};
  return tojson(value) == tojson(expected)
             ? ""
             : value.location() + ": is " + tojson(value) + ", expected " + tojson(expected);
}

}  // namespace ddtree
