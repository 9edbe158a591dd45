// ddtree serve: the OpenAI-compatible server. It listens first and answers 503 while it loads, so that whoever
// supervises it sees it at once.

#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <thread>

#include "cli/commands.h"
#include "cli/serve_flags.h"
#include "server/engine_gate.h"
#include "server/lifecycle.h"
#include "server/server_metrics.h"

namespace ddtree {
namespace {

constexpr int kStalledStatus = 70;
constexpr int kInterruptedStatus = 130;
constexpr auto kWatchInterval = std::chrono::milliseconds(250);
constexpr auto kFlushTime = std::chrono::seconds(2);  // for the last events to reach their clients

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// A descriptor for every connection that may come, as far as the system lets us.
void raise_descriptor_limit(int connections) {
  constexpr rlim_t kOthers = 64;
  rlimit limit = {};
  const rlim_t wanted = static_cast<rlim_t>(connections) + kOthers;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// An HTTP server and the thread it runs on.
class ServerThread {
 public:
  ServerThread() = default;
  ~ServerThread() { stop(); }
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

  void start(std::unique_ptr<HttpServer> server) {
    server_ = std::move(server);
    thread_ = std::thread([this] { server_->run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    server_->stop();
    thread_.join();
  }
  HttpServer& operator*() { return *server_; }
  HttpServer* operator->() { return server_.get(); }

 private:
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

class Serving {
 public:
  explicit Serving(ServeFlags flags) : flags_(std::move(flags)), watchdog_(milliseconds(flags_.step_timeout)) {}
  Result<int> run();

 private:
  Status listen();
  Status listen_metrics();
  Status load();
  void on_signal(int signal);
  void reload_keys();
  std::string metrics_text() const;
  bool await_shutdown();
  void watch();
  void drain();

  const ServeFlags flags_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Lifecycle lifecycle_;
  ServerMetrics metrics_;
  EngineGate gate_;
  Watchdog watchdog_;
  std::atomic<bool> loaded_{false};
  std::string backend_ = "none";  // written before loaded_
  std::unique_ptr<Session> session_;
  std::unique_ptr<ApiContext> context_;

  std::mutex mutex_;
  std::condition_variable signalled_;
  bool shutdown_ = false;  // guarded by mutex_

  ServerThread server_, metrics_server_;  // last: their threads use all of the above
};

std::string Serving::metrics_text() const {
  const std::string_view backend = loaded_ ? std::string_view(backend_) : "none";
  return metrics_.text({gate_.load(), lifecycle_.state(), DDTREE_VERSION, backend});
}

Status Serving::listen() {
  TRY_ASSIGN(HttpOptions options, http_options(flags_));
  const bool keyed = !options.keys.empty();
  options.on_done = [this](const HttpDone& done) {
    metrics_.on_http(done);
    log_request(done);
  };
  std::vector<Route> routes = lifecycle_.routes(DDTREE_VERSION);
  routes.push_back(metrics_route(flags_.open_metrics, [this] { return metrics_text(); }));
  TRY_ASSIGN(std::unique_ptr<HttpServer> server, HttpServer::listen(std::move(options), std::move(routes)));
  server->on_signals({SIGTERM, SIGINT, SIGHUP}, [this](int signal) { on_signal(signal); });
  log(LogLevel::kInfo, "listening",
      {{"host", flags_.host}, {"port", int64_t{server->port()}}, {"pid", int64_t{getpid()}}, {"keys", keyed}});
  if (!flags_.api_key.empty()) log(LogLevel::kWarning, "--api-key can be seen by other users of this machine");
  server_.start(std::move(server));
  return listen_metrics();
}

// Without keys: scrapers of metrics send none.
Status Serving::listen_metrics() {
  if (flags_.metrics_port < 0) return {};
  HttpOptions options;
  options.host = flags_.host;
  options.port = static_cast<uint16_t>(flags_.metrics_port);
  options.allow_unauthenticated = true;
  options.host_names = flags_.allowed_hosts;
  TRY_ASSIGN(std::unique_ptr<HttpServer> server,
             HttpServer::listen(std::move(options), {metrics_route(true, [this] { return metrics_text(); })}));
  log(LogLevel::kInfo, "metrics", {{"port", int64_t{server->port()}}});
  server->ready({});
  metrics_server_.start(std::move(server));
  return {};
}

Status Serving::load() {
  TRY_ASSIGN(session_, open_session(flags_.model, flags_.max_num_seqs));
  TRY(session_->text());
  TRY_ASSIGN(std::unique_ptr<EngineCore> core,
             EngineCore::create(*session_->backend, *session_->model.decoder, session_->model.drafter.get(),
                                engine_options(flags_, *session_)));
  context_ = std::make_unique<ApiContext>(gate_, *session_->tokenizer, int64_t{flags_.max_num_seqs} + flags_.queue);
  context_->observer = &metrics_;
  context_->max_context = core->max_context();
  TRY(describe_model(flags_, *session_, *context_));
  gate_.open(std::make_unique<Engine>(std::move(core)));
  backend_ = session_->backend->name();
  loaded_ = true;
  return {};
}

// On the server's thread.
void Serving::on_signal(int signal) {
  if (signal == SIGHUP) {
    reload_keys();
    return;
  }
  const std::lock_guard lock(mutex_);
  if (shutdown_) {
    log(LogLevel::kWarning, "second signal: stopped at once");
    _exit(kInterruptedStatus);
  }
  if (!loaded_) {
    log(LogLevel::kInfo, "stopped while loading");
    _exit(0);
  }
  shutdown_ = true;
  signalled_.notify_all();
}

void Serving::reload_keys() {
  Result<ApiKeys> keys = read_keys(flags_);
  if (!keys.ok()) {
    log(LogLevel::kError, "keys not reloaded", {{"why", keys.error().message}});
  } else {
    log(LogLevel::kInfo, "keys reloaded");
    server_->set_keys(*std::move(keys));
  }
}

// True once a signal has come.
bool Serving::await_shutdown() {
  std::unique_lock lock(mutex_);
  return signalled_.wait_for(lock, kWatchInterval, [this] { return shutdown_; });
}

void Serving::watch() {
  const EngineLoad load = gate_.load();
  const auto waiting = watchdog_.waiting(load, Watchdog::Clock::now());
  const bool stalled = waiting > milliseconds(flags_.step_timeout);
  const std::vector<LogField> state = {{"seconds", std::chrono::duration<double>(waiting).count()},
                                       {"running", int64_t{load.running}},
                                       {"waiting", int64_t{load.waiting}},
                                       {"steps", load.totals.steps},
                                       {"unused_pages", int64_t{load.unused_pages}}};
  if (stalled && lifecycle_.live()) log(LogLevel::kError, "no step completes", state);
  if (!stalled && !lifecycle_.live()) log(LogLevel::kWarning, "steps complete again", state);
  lifecycle_.set_stalled(stalled);
  if (waiting <= 2 * milliseconds(flags_.step_timeout)) return;
  log(LogLevel::kError, "given up: a supervisor should start this server anew", state);
  _exit(kStalledStatus);
}

void Serving::drain() {
  lifecycle_.set_draining();
  server_->drain();
  log(LogLevel::kInfo, "draining", {{"seconds_at_most", flags_.drain_timeout}});
  const bool drained = server_->wait_idle(milliseconds(flags_.drain_timeout));
  gate_.close();
  server_->wait_idle(kFlushTime);
  server_.stop();
  metrics_server_.stop();
  log(LogLevel::kInfo, "stopped", {{"all_requests_ended", drained}});
}

Result<int> Serving::run() {
  raise_descriptor_limit(flags_.limits.connections);
  TRY(listen());
  TRY(load());
  server_->ready(make_api_routes(*context_));
  lifecycle_.set_ready();
  log(LogLevel::kInfo, "ready",
      {{"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count()},
       {"model", context_->names[0]},
       {"backend", backend_},
       {"context", int64_t{context_->max_context}},
       {"sequences", int64_t{flags_.max_num_seqs}},
       {"drafter", session_->model.drafter != nullptr},
       {"chat", context_->chat ? std::string(chat_family_name(context_->chat->family())) : "none"}});
  if (!context_->chat) log(LogLevel::kWarning, "no chat", {{"why", context_->no_chat}});
  while (!await_shutdown()) watch();
  drain();
  return 0;
}

}  // namespace

void add_serve(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* app = parent.add_subcommand("serve", "Serve a model over HTTP, with OpenAI's API");
  add_serve_flags(*app, *flags);
  app->callback([flags, &exit_code] {
    set_log_level(*log_level_from_name(flags->log_level));
    std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more ends no service
    Serving serving(*flags);
    const Result<int> result = serving.run();
    exit_code = result.ok() ? *result : report(result.error());
  });
}

}  // namespace ddtree
