#include "server/api.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <utility>

#include <fmt/core.h>

#include "base/json_writer.h"
#include "server/api_error.h"
#include "server/chat_plan.h"
#include "server/random_id.h"

namespace ddtree {
namespace {

using RequestPtr = std::shared_ptr<const HttpRequest>;
using ReplyPtr = std::shared_ptr<HttpReply>;
using Handler = void (*)(ApiContext&, const HttpRequest&, const ReplyPtr&);

constexpr int32_t kCompletionTokens = 16;       // where a request does not say, as OpenAI has it
constexpr size_t kLongBody = size_t{64} << 10;  // beyond this a request is read and tokenised by the worker
constexpr std::string_view kJson = "application/json";

int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// --- what several endpoints need ---

Status check_model(const ApiContext& context, const std::string& name) {
  const std::vector<std::string>& names = context.names;
  if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) return {};
  return Error{Code::kNotFound, fmt::format("model: no model of this name is served here, only {}", names[0])};
}

HttpError no_chat(const ApiContext& context) {
  return {400, "no_chat_template", "messages: this model has no chat template: " + context.no_chat, "messages"};
}

std::optional<HttpError> check_length(const ApiContext& context, size_t prompt, std::string param) {
  if (std::cmp_less(prompt, context.max_context)) return {};
  return HttpError{400, "context_length_exceeded",
                   fmt::format("{}: it has {} tokens, but prompt and reply share a context of {} tokens; shorten it",
                               param, prompt, context.max_context),
                   param};
}

Result<std::vector<int32_t>> encode(const ApiContext& context, const std::string& text, bool add_special) {
  TRY_ASSIGN(std::vector<int32_t> ids, context.tokenizer.encode(text));
  if (add_special && context.bos_id) ids.insert(ids.begin(), *context.bos_id);
  return ids;
}

ReplyHead make_head(const ApiContext& context, const GenerationOptions& options, bool chat) {
  ReplyHead head;
  head.chat = chat;
  head.id = (chat ? "chatcmpl-" : "cmpl-") + (options.request_id.empty() ? random_id() : options.request_id);
  head.model = options.model.empty() ? context.names[0] : options.model;
  head.fingerprint = context.fingerprint;
  head.created = seconds_since_1970();
  head.logprobs = options.sampling.logprobs >= 0;
  head.tokens_as_ids = options.tokens_as_ids;
  head.return_token_ids = options.return_token_ids;
  return head;
}

// More than may ever run: trying again would not help.
std::optional<HttpError> check_choices(const ApiContext& context, const GenerationPlan& plan) {
  const int64_t choices = std::ssize(plan.prompts) * plan.options.n;
  if (choices <= context.admission.limit()) return {};
  return HttpError{400, "invalid_value",
                   fmt::format("n: {} prompts times {} choices are more than the {} that this server takes",
                               plan.prompts.size(), plan.options.n, context.admission.limit()),
                   "n"};
}

void start(ApiContext& context, GenerationPlan plan, const ReplyPtr& reply) {
  if (const auto error = check_choices(context, plan)) return send_error(*reply, *error);
  Result<StopStrings> stops = StopStrings::create(plan.options.stop);
  if (!stops.ok()) return send_error(*reply, request_error(stops.error()));
  if (!plan.options.has_seed) plan.options.sampling.seed = random_seed();
  const GenerationContext generation = {context.source, context.tokenizer, context.admission, context.observer};
  Generation::start(generation, std::move(plan), *std::move(stops), reply);
}

// --- POST /v1/completions ---

Result<PromptPlan> plan_prompt(const ApiContext& context, const CompletionRequest& request, size_t index) {
  PromptPlan plan;
  if (const auto* text = std::get_if<std::string>(&request.prompts[index])) {
    TRY_ASSIGN(plan.ids, encode(context, *text, request.add_special_tokens));
    if (request.echo) plan.echo = *text;
    return plan;
  }
  plan.ids = std::get<std::vector<int32_t>>(request.prompts[index]);
  if (request.echo) {
    Detokenizer detokenizer(context.tokenizer, request.options.skip_special_tokens);
    for (const int32_t id : plan.ids) plan.echo += detokenizer.push(id);
    plan.echo += detokenizer.finish();
  }
  return plan;
}

void handle_completion(ApiContext& context, const HttpRequest& http, const ReplyPtr& reply) {
  Result<CompletionRequest> request = parse_completion_request(http.body, context.limits, context.defaults);
  if (!request.ok()) return send_error(*reply, request_error(request.error()));
  if (const Status status = check_model(context, request->options.model); !status.ok())
    return send_error(*reply, request_error(status.error()));
  GenerationPlan plan;
  plan.head = make_head(context, request->options, false);
  plan.max_tokens = kCompletionTokens;
  for (size_t i = 0; i < request->prompts.size(); ++i) {
    Result<PromptPlan> prompt = plan_prompt(context, *request, i);
    if (!prompt.ok()) return send_error(*reply, request_error(prompt.error()));
    if (const auto error = check_length(context, prompt->ids.size(), "prompt")) return send_error(*reply, *error);
    plan.prompts.push_back(*std::move(prompt));
  }
  plan.options = std::move(request->options);
  start(context, std::move(plan), reply);
}

// --- POST /v1/chat/completions ---

void handle_chat(ApiContext& context, const HttpRequest& http, const ReplyPtr& reply) {
  Result<ChatRequest> request = parse_chat_request(http.body, context.limits, context.defaults);
  if (!request.ok()) return send_error(*reply, request_error(request.error()));
  if (const Status status = check_model(context, request->options.model); !status.ok())
    return send_error(*reply, request_error(status.error()));
  if (!context.chat) return send_error(*reply, no_chat(context));
  Result<GenerationPlan> plan = plan_chat(*context.chat, context.tokenizer, context.split_reasoning, *request);
  if (!plan.ok()) return send_error(*reply, request_error(plan.error()));
  const size_t length = plan->prompts[0].ids.size();
  if (const auto error = check_length(context, length, "messages")) return send_error(*reply, *error);
  plan->head = make_head(context, request->options, true);
  plan->max_tokens = context.max_context - static_cast<int32_t>(length);
  plan->options = std::move(request->options);
  start(context, *std::move(plan), reply);
}

// --- POST /tokenize, /detokenize ---

Result<std::vector<int32_t>> tokenize(const ApiContext& context, const TokenizeRequest& request) {
  if (request.text) return encode(context, *request.text, request.add_special_tokens);
  TRY_ASSIGN(ChatPrompt prompt, context.chat->render(request.chat, request.prompt));
  return std::move(prompt.ids);
}

void handle_tokenize(ApiContext& context, const HttpRequest& http, const ReplyPtr& reply) {
  Result<TokenizeRequest> request = parse_tokenize_request(http.body, context.limits);
  if (!request.ok()) return send_error(*reply, request_error(request.error()));
  if (const Status status = check_model(context, request->model); !status.ok())
    return send_error(*reply, request_error(status.error()));
  if (!request->text && !context.chat) return send_error(*reply, no_chat(context));
  const Result<std::vector<int32_t>> ids = tokenize(context, *request);
  if (!ids.ok()) return send_error(*reply, request_error(ids.error()));
  JsonWriter out;
  out.begin_object().member("count", ids->size()).member("max_model_len", context.max_context);
  out.key("tokens").begin_array();
  for (const int32_t id : *ids) out.value(id);
  out.end_array();
  if (request->return_token_strs) {
    out.key("token_strs").begin_array();
    for (const int32_t id : *ids) out.value(context.tokenizer.token_bytes(id));
    out.end_array();
  }
  out.end_object();
  reply->send(200, std::string(kJson), std::move(out).text());
}

void handle_detokenize(ApiContext& context, const HttpRequest& http, const ReplyPtr& reply) {
  const Result<DetokenizeRequest> request = parse_detokenize_request(http.body, context.limits);
  if (!request.ok()) return send_error(*reply, request_error(request.error()));
  if (const Status status = check_model(context, request->model); !status.ok())
    return send_error(*reply, request_error(status.error()));
  for (const int32_t id : request->tokens)
    if (id >= context.tokenizer.vocab_size())
      return send_error(*reply, {400, "invalid_value",
                                 fmt::format("tokens: token {} is outside the vocabulary, 0 … {}", id,
                                             context.tokenizer.vocab_size() - 1),
                                 "tokens"});
  JsonWriter out;
  out.begin_object().member("prompt", context.tokenizer.decode(request->tokens)).end_object();
  reply->send(200, std::string(kJson), std::move(out).text());
}

// --- GET /v1/models, /v1/models/* ---

// `root` is what vLLM's benchmark client reads.
void write_model(JsonWriter& out, const ApiContext& context, const std::string& name) {
  out.begin_object().member("id", name).member("object", "model").member("created", context.created);
  out.member("owned_by", "ddtree").member("root", context.names[0]).member("max_model_len", context.max_context);
  out.end_object();
}

void handle_models(ApiContext& context, const HttpRequest&, const ReplyPtr& reply) {
  JsonWriter out;
  out.begin_object().member("object", "list").key("data").begin_array();
  for (const std::string& name : context.names) write_model(out, context, name);
  out.end_array().end_object();
  reply->send(200, std::string(kJson), std::move(out).text());
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

void handle_model(ApiContext& context, const HttpRequest& http, const ReplyPtr& reply) {
  const std::string name = percent_decoded(std::string_view(http.path).substr(http.path.rfind('/') + 1));
  if (const Status status = check_model(context, name); !status.ok() || name.empty())
    return send_error(*reply, {404, "model_not_found", "no model of this name is served here", "model"});
  JsonWriter out;
  write_model(out, context, name);
  reply->send(200, std::string(kJson), std::move(out).text());
}

Route route(ApiContext& context, std::string method, std::string path, Handler handler) {
  Route route;
  route.method = std::move(method);
  route.path = std::move(path);
  route.handle = [&context, handler](const RequestPtr& request, const ReplyPtr& reply) {
    if (request->body.size() <= kLongBody) return handler(context, *request, reply);
    if (!context.worker.post([&context, handler, request, reply] { handler(context, *request, reply); }))
      send_error(*reply, {429, "queue_full", "too many long requests are waiting; try again later", ""});
  };
  return route;
}

}  // namespace

std::vector<Route> make_api_routes(ApiContext& context) {
  return {route(context, "POST", "/v1/completions", handle_completion),
          route(context, "POST", "/v1/chat/completions", handle_chat),
          route(context, "POST", "/tokenize", handle_tokenize),
          route(context, "POST", "/detokenize", handle_detokenize),
          route(context, "GET", "/v1/models", handle_models),
          route(context, "GET", "/v1/models/*", handle_model)};
}

}  // namespace ddtree
