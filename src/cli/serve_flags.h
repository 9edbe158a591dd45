// The flags of `ddtree serve`, and what they say about keys, names and defaults.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/options.h"
#include "cli/session.h"
#include "server/api.h"
#include "server/http.h"

namespace ddtree {

struct ServeFlags {
  ModelFlags model;
  SpecFlags spec;
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  int metrics_port = -1;  // none
  bool open_metrics = false;
  std::string api_key;
  std::vector<std::string> api_key_files;
  bool allow_unauthenticated = false;
  std::vector<std::string> cors_origins, allowed_hosts;
  std::vector<std::string> names;
  std::string chat_template = "auto", reasoning_format = "split";
  bool timings = false, no_prefix_cache = false;
  int32_t max_model_len = 0, max_num_seqs = 16, queue = 256;
  int64_t cache_tokens = 0;
  double drain_timeout = 30, step_timeout = 60;
  std::string log_level = "info";
  HttpLimits limits;
};

void add_serve_flags(CLI::App& app, ServeFlags& flags);

Result<ApiKeys> read_keys(const ServeFlags& flags);
Result<HttpOptions> http_options(const ServeFlags& flags);
EngineOptions engine_options(const ServeFlags& flags, const Session& session);
// The context's fields that say what is served.
Status describe_model(const ServeFlags& flags, const Session& session, ApiContext& context);
std::string served_name(const ServeFlags& flags, const Session& session);

}  // namespace ddtree
