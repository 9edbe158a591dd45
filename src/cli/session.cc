#include "cli/session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include <fmt/core.h>

#include "engine/step_prior.h"

namespace ddtree {
namespace {

constexpr int32_t kStepRows = 1088;
constexpr int32_t kPrefillRows = 512;

// A line on the terminal that is gone when this is.
class Progress {
 public:
  explicit Progress(std::string what) : what_(std::move(what)) {}
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }
  void show(int64_t done, int64_t layers) const {
    if (shown_) fmt::print(stderr, "\r\033[Kloading {}: layer {} of {}", what_, done + 1, layers);
  }

 private:
  std::string what_;
  bool shown_ = isatty(STDERR_FILENO) != 0;
};

}  // namespace

SchedulerOptions scheduler_options(int32_t streams) {
  SchedulerOptions options;
  options.max_streams = streams;
  options.max_rows = std::max(kStepRows, streams + kPrefillRows);
  options.prefill_rows = kPrefillRows;
  return options;
}

Result<std::unique_ptr<Session>> open_session(const ModelFlags& flags, int32_t max_streams) {
  const auto start = std::chrono::steady_clock::now();
  auto session = std::make_unique<Session>();
  std::string dir = flags.model;
  if (dir.empty()) {
    TRY_ASSIGN(dir, demo_model());
  }
  TRY_ASSIGN(session->paths, locate_model(dir, flags.draft));
  const Progress progress(session->paths.target);
  TRY_ASSIGN(const BackendOptions options, backend_options(flags));
  TRY_ASSIGN(ModelOptions model_options, ddtree::model_options(flags));
  model_options.progress = [&](int64_t done, int64_t layers) { progress.show(done, layers); };
  TRY_ASSIGN(session->backend, make_backend(options));
  const SchedulerOptions limits = scheduler_options(max_streams);
  const int32_t observed = std::max(limits.prefill_rows, max_streams * Step::kTapRoom);
  TRY_ASSIGN(session->model,
             load_model(*session->backend, session->paths, {limits.max_rows, max_streams, observed}, model_options));
  Result<Tokenizer> tokenizer = Tokenizer::load(session->paths.target);
  if (tokenizer.ok()) {
    session->tokenizer = *std::move(tokenizer);
  } else {
    session->no_tokenizer = tokenizer.error().message;
  }
  session->load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return session;
}

Result<std::unique_ptr<EngineCore>> Session::engine(int32_t streams, int32_t context) {
  EngineOptions options;
  options.scheduler = scheduler_options(streams);
  options.max_context = static_cast<int32_t>(model.config.max_position);
  if (context > 0) options.max_context = std::min(options.max_context, context);
  options.cache_tokens = int64_t{options.max_context + kPageRows} * streams;
  options.eos_ids = model.config.eos_ids;
  options.step_prior = step_prior();
  return EngineCore::create(*backend, *model.decoder, model.drafter.get(), options);
}

StepPrior Session::step_prior() const {
  const DrafterConfig* drafter = model.draft_config ? &*model.draft_config : nullptr;
  const bool gpu = backend->name().starts_with("cuda");
  return ddtree::step_prior(model.config, drafter, gpu ? gpu_speed() : cpu_speed());
}

Result<const Tokenizer*> Session::text() const {
  if (!tokenizer)
    return Error{Code::kUnsupported, "this model's tokenizer cannot be used: " + no_tokenizer + "; give --ids instead"};
  return &*tokenizer;
}

int report(const Error& error) {
  fmt::print(stderr, "ddtree: {}\n", error.message);
  const bool callers = error.code == Code::kInvalidArgument || error.code == Code::kUnsupported;
  return callers ? 2 : 1;
}

}  // namespace ddtree
