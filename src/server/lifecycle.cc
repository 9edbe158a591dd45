#include "server/lifecycle.h"

#include <utility>

#include "base/json_writer.h"
#include "server/http_error.h"

namespace ddtree {
namespace {

constexpr const char* kJson = "application/json";

std::string object(std::string_view key, std::string_view value) {
  JsonWriter out;
  out.begin_object().member(key, value).end_object();
  return std::move(out).text();
}

}  // namespace

Watchdog::Clock::duration Watchdog::waiting(const EngineLoad& load, Clock::time_point now) {
  if (!load.busy()) {
    last_.reset();
    return {};
  }
  if (last_ != load.since) {
    last_ = load.since;
    seen_ = now;
  }
  return now - seen_;
}

std::string_view Lifecycle::state() const {
  if (stalled_) return "stalled";
  if (draining_) return "draining";
  return ready_ ? "ready" : "loading";
}

std::vector<Route> Lifecycle::routes(std::string version) const {
  const auto answer = [this](HttpReply& reply, bool good) {
    if (good) {
      reply.send(200, kJson, object("status", state()));
    } else {
      send_error(reply, {503, std::string(state()), "this server is " + std::string(state()), ""});
    }
  };
  const auto alive = [this, answer](auto, auto reply) { answer(*reply, live()); };
  const auto ready = [this, answer](auto, auto reply) { answer(*reply, state() == "ready"); };
  const auto say_version = [version = std::move(version)](auto, auto reply) {
    reply->send(200, kJson, object("version", version));
  };
  return {{"GET", "/livez", true, true, alive},
          {"GET", "/readyz", true, true, ready},
          {"GET", "/health", true, true, ready},
          {"GET", "/version", false, true, say_version}};
}

Route metrics_route(bool is_public, std::function<std::string()> write) {
  return {"GET", "/metrics", is_public, true, [write = std::move(write)](auto, auto reply) {
            reply->send(200, "text/plain; version=0.0.4; charset=utf-8", write());
          }};
}

void log_request(const HttpDone& done) {
  std::vector<LogField> fields = {{"id", done.request_id},          {"method", done.method},     {"route", done.route},
                                  {"status", int64_t{done.status}}, {"ms", done.seconds * 1000}, {"bytes", done.bytes}};
  if (done.gone) fields.push_back({"client_gone", true});
  fields.insert(fields.end(), done.notes.begin(), done.notes.end());
  const bool routine =
      done.route == "/livez" || done.route == "/readyz" || done.route == "/health" || done.route == "/metrics";
  log(routine ? LogLevel::kDebug : done.status >= 500 ? LogLevel::kWarning : LogLevel::kInfo, "request", fields);
}

}  // namespace ddtree
