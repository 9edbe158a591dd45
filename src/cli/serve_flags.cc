#include "cli/serve_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/json.h"

namespace ddtree {
namespace {

constexpr const char* kKeyVariable = "DDTREE_API_KEY";

void add_network_flags(CLI::App& app, ServeFlags& flags) {
  app.add_option("--host", flags.host, "Address or name to listen at, or unix:/path")->capture_default_str();
  app.add_option("--port", flags.port, "Port; 0: any that is free")->capture_default_str();
  app.add_option("--api-key-file", flags.api_key_files,
                 "File of keys, one a line; may be given again; read anew on SIGHUP");
  app.add_option("--api-key", flags.api_key,
                 "A key; other users of the machine can see it: --api-key-file and $DDTREE_API_KEY are better");
  app.add_flag("--allow-unauthenticated", flags.allow_unauthenticated, "Serve other machines although there is no key");
  app.add_option("--cors-origin", flags.cors_origins,
                 "Origin whose web pages may call this server; may be given again");
  app.add_option("--allowed-host", flags.allowed_hosts,
                 "Further name that requests to a loopback address may give as Host; may be given again");
  app.add_option("--metrics-port", flags.metrics_port, "Serve /metrics at this port too, without a key; -1: no")
      ->capture_default_str()
      ->check(CLI::Range(-1, 65535));
  app.add_flag("--open-metrics", flags.open_metrics, "Serve /metrics without a key");
  app.add_option("--max-connections", flags.limits.connections, "Connections at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  app.add_option("--max-connections-per-address", flags.limits.connections_per_address,
                 "Of one machine; this one is exempt")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
}

void add_engine_flags(CLI::App& app, ServeFlags& flags) {
  app.add_option("--max-model-len", flags.max_model_len, "Tokens of prompt and reply together; 0: the model's limit")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--max-num-seqs", flags.max_num_seqs, "Sequences that run at once")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--max-waiting", flags.queue, "Sequences that may wait beside them; more are answered 429")
      ->capture_default_str()
      ->check(CLI::Range(0, 4000));
  app.add_option("--cache-tokens", flags.cache_tokens,
                 "Tokens that the cache has room for; 0: all sequences at full length")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  app.add_flag("--no-prefix-cache", flags.no_prefix_cache, "Compute prompts that begin alike anew");
}

void add_api_flags(CLI::App& app, ServeFlags& flags) {
  app.add_option("--served-model-name", flags.names, "Name of the model in the API; more are aliases");
  app.add_option("--chat-template", flags.chat_template, "Family of the chat template, or auto")->capture_default_str();
  app.add_option("--reasoning-format", flags.reasoning_format, "split: in a field of its own; none: in the content")
      ->capture_default_str()
      ->check(CLI::IsMember({"split", "none"}));
  app.add_flag("--timings", flags.timings, "Replies say how they were made, unless a request says not to");
  app.add_option("--drain-timeout", flags.drain_timeout, "Seconds for requests to end after SIGTERM")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  app.add_option("--step-timeout", flags.step_timeout,
                 "Seconds without a step, with work to do, after which /livez fails")
      ->capture_default_str()
      ->check(CLI::Range(0.1, 86400.0));
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error")
      ->capture_default_str()
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
}

// generation_config.json names what its makers recommend; a file that is not there recommends nothing.
Status read_defaults(const std::string& dir, RequestDefaults& defaults) {
  const std::string path = dir + "/generation_config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  TRY_ASSIGN(const JsonDocument document, parse_json(text, "generation_config.json"));
  TRY_ASSIGN(const std::optional<double> temperature, document.root().find_double("temperature", 0, 2));
  TRY_ASSIGN(const std::optional<double> top_p, document.root().find_double("top_p", 0, 1));
  if (temperature) defaults.temperature = static_cast<float>(*temperature);
  if (top_p && *top_p > 0) defaults.top_p = static_cast<float>(*top_p);
  return {};
}

Result<ChatRenderer> renderer(const ServeFlags& flags, const Tokenizer& tokenizer, const std::string& model_type) {
  if (flags.chat_template == "auto") return ChatRenderer::create(tokenizer, model_type);
  TRY_ASSIGN(const ChatFamily family, find_chat_family(flags.chat_template));
  return ChatRenderer::create(tokenizer, family);
}

}  // namespace

void add_serve_flags(CLI::App& app, ServeFlags& flags) {
  add_model_flags(app, flags.model);
  add_network_flags(app, flags);
  add_engine_flags(app, flags);
  add_api_flags(app, flags);
  add_spec_flags(app, flags.spec);
}

Result<ApiKeys> read_keys(const ServeFlags& flags) {
  ApiKeys keys;
  if (!flags.api_key.empty()) TRY(keys.add(flags.api_key, "--api-key"));
  if (const char* key = std::getenv(kKeyVariable); key != nullptr) TRY(keys.add(key, kKeyVariable));
  for (const std::string& path : flags.api_key_files) TRY(keys.add_file(path));
  return keys;
}

Result<HttpOptions> http_options(const ServeFlags& flags) {
  HttpOptions options;
  TRY_ASSIGN(options.keys, read_keys(flags));
  options.host = flags.host;
  options.port = flags.port;
  options.limits = flags.limits;
  options.allow_unauthenticated = flags.allow_unauthenticated;
  options.cors_origins = flags.cors_origins;
  options.host_names = flags.allowed_hosts;
  return options;
}

EngineOptions engine_options(const ServeFlags& flags, const Session& session) {
  EngineOptions options;
  options.scheduler = scheduler_options(flags.max_num_seqs);
  options.scheduler.max_waiting = flags.max_num_seqs + flags.queue;
  options.scheduler.reuse_prefixes = !flags.no_prefix_cache;
  options.max_context = static_cast<int32_t>(session.model.config.max_position);
  if (flags.max_model_len > 0) options.max_context = std::min(options.max_context, flags.max_model_len);
  options.cache_tokens =
      flags.cache_tokens > 0 ? flags.cache_tokens : int64_t{options.max_context + kPageRows} * flags.max_num_seqs;
  options.eos_ids = session.model.config.eos_ids;
  options.step_prior = session.step_prior();
  return options;
}

std::string served_name(const ServeFlags& flags, const Session& session) {
  if (!flags.names.empty()) return flags.names[0];
  std::filesystem::path path = std::filesystem::path(session.paths.target).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  if (path.filename() == "target") path = path.parent_path();
  return path.filename().string();
}

Status describe_model(const ServeFlags& flags, const Session& session, ApiContext& context) {
  context.names = {served_name(flags, session)};
  if (flags.names.size() > 1) context.names.insert(context.names.end(), flags.names.begin() + 1, flags.names.end());
  context.fingerprint = std::string("ddtree-" DDTREE_VERSION "-") + std::string(session.backend->name());
  context.created = std::time(nullptr);
  context.bos_id = session.model.config.bos_id;
  context.split_reasoning = flags.reasoning_format == "split";
  TRY_ASSIGN(context.defaults.spec, spec_options(flags.spec));
  context.defaults.timings = flags.timings;
  TRY(read_defaults(session.paths.target, context.defaults));
  Result<ChatRenderer> chat = renderer(flags, *session.tokenizer, session.model.config.model_type);
  if (chat.ok()) {
    context.chat = *std::move(chat);
  } else if (flags.chat_template == "auto") {
    context.no_chat = chat.error().message;
  } else {
    return chat.error();
  }
  return {};
}

}  // namespace ddtree
