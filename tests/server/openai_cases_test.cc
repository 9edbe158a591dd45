// cases/*.json: requests, what the model says, and what the client must get. A file is an array of cases:
//   "call": "POST /v1/completions"     "body": the request, or "raw": its text
//   "template": a chat template, or "none"
//   "answers": what each choice says, in order: {"text", "steps": tokens of each step, the last again and again}
//   "status", "reply": of the whole reply; "events": of a stream, "[DONE]" included
//   "submitted": the engine's requests
// Replies are compared as mismatch() has it.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "server/openai_support.h"
#include "text/chat_json.h"

namespace ddtree {
namespace {

std::string describe(const Request& request) {
  const SamplingParams& s = request.sampling;
  JsonWriter out;
  out.begin_object().member("prompt", byte_tokenizer().decode(request.prompt)).key("ids").begin_array();
  for (const int32_t id : request.prompt) out.value(id);
  out.end_array().member("max_tokens", request.max_tokens).member("ignore_eos", request.ignore_eos);
  out.key("stop_ids").begin_array();
  for (const int32_t id : request.stop_ids) out.value(id);
  out.end_array().member("temperature", s.temperature).member("top_p", s.top_p).member("top_k", s.top_k);
  out.member("min_p", s.min_p).member("seed", s.seed).member("repetition_penalty", s.repetition_penalty);
  out.member("presence_penalty", s.presence_penalty).member("frequency_penalty", s.frequency_penalty);
  out.member("min_tokens", s.min_tokens).member("logprobs", s.logprobs).key("logit_bias").begin_array();
  for (const auto& [id, bias] : s.logit_bias) out.begin_array().value(id).value(bias).end_array();
  out.end_array().member("choice", request.choice).member("mode", spec_mode_name(request.spec.mode));
  out.member("budget", request.spec.budget).member("cache_salt", request.cache_salt).end_object();
  return std::move(out).text();
}

std::vector<int> step_sizes(JsonValue answer) {
  const std::optional<JsonValue> steps = answer.find("steps");
  if (!steps) return {1};
  std::vector<int> sizes;
  for (const JsonValue size : elements(*steps)) sizes.push_back(static_cast<int>(*size.as_int()));
  return sizes;
}

std::string compare(const std::string& text, JsonValue expected) {
  if (expected.is_string()) return text == *expected.as_string() ? "" : "is " + text;
  const Result<JsonDocument> document = parse_json(text, "reply");
  const std::string why = document.ok() ? mismatch(document->root(), expected) : document.error().message;
  return why.empty() ? why : why + "\n" + text;
}

void check_submitted(const ScriptedSource& source, JsonValue expected) {
  ASSERT_EQ(source.running.size(), expected.elements()->size());
  size_t i = 0;
  for (const JsonValue wanted : elements(expected))
    EXPECT_EQ(compare(describe(source.running[i++].request), wanted), "");
}

void check_events(const RecordingReply& reply, JsonValue expected) {
  std::string all;
  for (const std::string& event : reply.events) all += event + "\n";
  ASSERT_EQ(reply.events.size(), expected.elements()->size()) << all;
  size_t i = 0;
  for (const JsonValue wanted : elements(expected)) EXPECT_EQ(compare(reply.events[i++], wanted), "");
}

void check_case(JsonValue test) {
  const std::optional<JsonValue> chat_template = test.find("template");
  ScriptedApi api(chat_template ? *chat_template->as_string() : "kimi-k2.5");
  const std::string_view call = *test.get_string("call");
  const size_t space = call.find(' ');
  const std::optional<JsonValue> body = test.find("body"), raw = test.find("raw");
  const std::string text = raw ? std::string(*raw->as_string()) : body ? tojson(*body) : "";
  const auto reply = api.call(call.substr(0, space), call.substr(space + 1), text);
  if (const auto answers = test.find("answers")) {
    size_t i = 0;
    ASSERT_EQ(api.source.running.size(), answers->elements()->size()) << reply->body;
    for (const JsonValue answer : elements(*answers))
      api.source.play(i++, script_ids(*answer.get_string("text")), step_sizes(answer));
  }
  EXPECT_TRUE(reply->finished);
  EXPECT_EQ(reply->status, *test.get_int("status")) << reply->body;
  EXPECT_EQ(reply->content_type, reply->streamed ? "" : "application/json");
  if (const auto expected = test.find("reply")) {
    EXPECT_EQ(compare(reply->body, *expected), "");
  }
  if (const auto expected = test.find("events")) check_events(*reply, *expected);
  if (const auto expected = test.find("submitted")) check_submitted(api.source, *expected);
}

class OpenAiCases : public testing::TestWithParam<std::string> {};

TEST_P(OpenAiCases, AreAnsweredAsTheySay) {
  const std::string path = DDTREE_SOURCE_DIR "/tests/server/cases/" + GetParam() + ".json";
  const MappedFile file = *MappedFile::open(path);
  const Result<JsonDocument> cases = parse_json(file.text(), GetParam());
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  for (const JsonValue test : elements(cases->root())) {
    const std::optional<JsonValue> name = test.find("name");
    const std::optional<JsonValue> body = test.find("body");
    SCOPED_TRACE(test.location() + ": " + (name ? std::string(*name->as_string()) : body ? tojson(*body) : ""));
    check_case(test);
  }
}

std::vector<std::string> case_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(DDTREE_SOURCE_DIR "/tests/server/cases"))
    names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Files, OpenAiCases, testing::ValuesIn(case_files()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace ddtree
