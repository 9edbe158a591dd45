// ddtree run: one prompt to text.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>

#include <fmt/core.h>

#include "base/json_writer.h"
#include "cli/commands.h"
#include "cli/prompt_file.h"
#include "cli/session.h"
#include "cli/stats_json.h"
#include "text/detokenizer.h"
#include "text/stop_strings.h"

namespace ddtree {
namespace {

struct RunFlags {
  ModelFlags model;
  TextFlags text;
  SpecFlags spec;
  std::string prompt, prompt_file;
  std::vector<int32_t> ids;
  std::vector<std::string> stop;
  bool bos = false, special = false, json = false, quiet = false;
};

std::atomic<bool> interrupted{false};
void on_interrupt(int) {
  interrupted = true;
  std::signal(SIGINT, SIG_DFL);  // the second ends it at once
}

constexpr int kInterruptedStatus = 130;  // as shells report SIGINT

// The prompt's text from where the flags say: --prompt, --prompt-file, or standard input when it is not a terminal.
Result<std::string> prompt_text(const CLI::App& app, const RunFlags& flags) {
  if (app.count("--prompt") > 0) return flags.prompt;
  if (app.count("--prompt-file") > 0) return read_file(flags.prompt_file);
  if (isatty(STDIN_FILENO))
    return Error{Code::kInvalidArgument, "no prompt: give --prompt, --prompt-file or --ids, or pipe text in"};
  return std::string{std::istreambuf_iterator<char>(std::cin), {}};
}

Result<std::vector<int32_t>> prompt_ids(const CLI::App& app, const RunFlags& flags, const Session& session) {
  std::vector<int32_t> ids;
  if (app.count("--ids") > 0) {
    ids = flags.ids;
  } else {
    TRY_ASSIGN(const Tokenizer* tokenizer, session.text());
    TRY_ASSIGN(const std::string text, prompt_text(app, flags));
    TRY_ASSIGN(ids, flags.special ? tokenizer->encode_with_special(text) : tokenizer->encode(text));
  }
  if (flags.bos) {
    if (!session.model.config.bos_id) return Error{Code::kInvalidArgument, "--bos: the model names no bos_token_id"};
    ids.insert(ids.begin(), *session.model.config.bos_id);
  }
  return ids;
}

// The text of a stream as it comes: characters are never split, and it ends before a stop string.
class TextStream {
 public:
  TextStream(const Tokenizer* tokenizer, const StopStrings& stops, bool echo) : matcher_(stops), echo_(echo) {
    if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, true);
  }

  // True while the text goes on.
  bool push(int32_t id) {
    ids_.push_back(id);
    if (detokenizer_) put(matcher_.push(detokenizer_->push(id)));
    return !matcher_.hit();
  }
  void finish() {
    if (detokenizer_ && !matcher_.hit()) put(matcher_.finish(detokenizer_->finish()));
  }
  const std::string& text() const { return text_; }
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  void put(const std::string& piece) {
    text_ += piece;
    if (!echo_ || piece.empty()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  }

  StopMatcher matcher_;
  std::optional<Detokenizer> detokenizer_;
  bool echo_;
  std::string text_;
  std::vector<int32_t> ids_;
};

struct Finished {
  FinishReason reason = FinishReason::kNone;
  RequestStats stats;
  double seconds = 0, first_token_seconds = 0;
  int64_t weight_bytes = 0;
};

// Steps the engine until the request has ended, giving each token to `out`.
Result<Finished> decode(EngineCore& engine, Request request, TextStream& out) {
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  Finished finished;
  std::optional<Error> error;
  request.stops = [&](int32_t token) {
    if (out.ids().empty()) finished.first_token_seconds = elapsed();
    return !out.push(token);
  };
  TRY(engine.validate(request));
  TRY(engine.submit(1, std::move(request), [&](Event&& event) {
    finished.reason = event.finish;
    if (event.stats) finished.stats = *event.stats;
    error = event.error;
  }));
  while (engine.step())
    if (interrupted) engine.cancel(1);
  out.finish();
  if (error) return *error;
  finished.seconds = elapsed();
  finished.weight_bytes = engine.totals().weight_bytes;
  return finished;
}

// Of decoding alone: the first token and the time to it left out.
double tokens_per_second(const TextStream& text, const Finished& run) {
  const double tokens = static_cast<double>(text.ids().size()) - 1, seconds = run.seconds - run.first_token_seconds;
  return tokens > 0 && seconds > 0 ? tokens / seconds : 0;
}

void print_json(const Session& session, const std::vector<int32_t>& prompt, const TextStream& text,
                const Finished& run) {
  JsonWriter out;
  out.begin_object().key("prompt_ids").begin_array();
  for (int32_t id : prompt) out.value(id);
  out.end_array().key("ids").begin_array();
  for (int32_t id : text.ids()) out.value(id);
  out.end_array().member("text", text.text()).member("finish_reason", finish_reason_name(run.reason));
  out.key("stats").begin_object();
  out.member("tokens_per_second", tokens_per_second(text, run));
  out.member("seconds", run.seconds).member("first_token_seconds", run.first_token_seconds);
  out.member("load_seconds", session.load_seconds).member("backend", session.backend->name());
  out.member("weight_bytes", run.weight_bytes);
  out.member("weight_gb_per_second", static_cast<double>(run.weight_bytes) / 1e9 / run.seconds);
  write_stats(out, run.stats);
  out.end_object().end_object();
  fmt::print("{}\n", std::move(out).text());
}

void print_summary(const TextStream& text, const Finished& run) {
  const RequestStats& s = run.stats;
  fmt::print(stderr, "\n{} tokens, {:.1f} tokens/s, first after {:.3f} s", text.ids().size(),
             tokens_per_second(text, run), run.first_token_seconds);
  fmt::print(stderr, "; {} passes of mode {}, {:.2f} tokens a pass\n", s.steps, s.effective_mode, s.accepted_length());
  if (!s.not_speculating.empty()) fmt::print(stderr, "not speculating: {}\n", s.not_speculating);
  if (!s.decision.empty() && s.decision != s.not_speculating) fmt::print(stderr, "{}\n", s.decision);
  double total = 0;
  for (double ms : s.phase_ms) total += ms;
  for (int p = 0; p < kPhases; ++p)
    if (s.phase_ms[p] > 0)
      fmt::print(stderr, "  {:<10}{:9.1f} ms {:5.1f} %\n", phase_name(static_cast<Phase>(p)), s.phase_ms[p],
                 100 * s.phase_ms[p] / total);
}

Result<int> run(const CLI::App& app, const RunFlags& flags) {
  TRY_ASSIGN(const SpecOptions spec, spec_options(flags.spec));
  TRY_ASSIGN(const StopStrings stops, StopStrings::create(flags.stop));
  TRY_ASSIGN(const std::unique_ptr<Session> session, open_session(flags.model, 1));
  Request request;
  TRY_ASSIGN(request.prompt, prompt_ids(app, flags, *session));
  request.max_tokens = flags.text.max_tokens;
  request.ignore_eos = flags.text.ignore_eos;
  request.sampling = flags.text.sampling;
  request.spec = spec;
  const int64_t length = std::ssize(request.prompt) + int64_t{request.max_tokens} + 1;
  const int32_t context = static_cast<int32_t>(std::clamp<int64_t>(length, 1, INT32_MAX));
  TRY_ASSIGN(const std::unique_ptr<EngineCore> engine, session->engine(1, context));
  std::signal(SIGINT, on_interrupt);
  const std::vector<int32_t> prompt = request.prompt;
  TextStream text(session->tokenizer ? &*session->tokenizer : nullptr, stops, !flags.json);
  TRY_ASSIGN(const Finished finished, decode(*engine, std::move(request), text));
  if (flags.json) {
    print_json(*session, prompt, text, finished);
  } else {
    fmt::print("\n");
    if (!flags.quiet) print_summary(text, finished);
  }
  return interrupted ? kInterruptedStatus : 0;
}

}  // namespace

void add_run(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* app = parent.add_subcommand("run", "Continue one prompt");
  add_model_flags(*app, flags->model);
  add_text_flags(*app, flags->text);
  add_spec_flags(*app, flags->spec);
  auto* prompt =
      app->add_option("--prompt", flags->prompt, "Text to continue; standard input if none is given and it is piped");
  auto* file = app->add_option("--prompt-file", flags->prompt_file, "File with the text to continue");
  auto* ids = app->add_option("--ids", flags->ids, "Token ids to continue, separated by commas")->delimiter(',');
  prompt->excludes(file)->excludes(ids);
  file->excludes(ids);
  app->add_flag("--bos", flags->bos, "Begin with the model's beginning-of-text token");
  app->add_flag("--special", flags->special, "Read control tokens in the prompt's text");
  app->add_option("--stop", flags->stop, "Text that ends the answer; may be repeated");
  app->add_flag("--json", flags->json, "One JSON object instead of text");
  app->add_flag("--quiet", flags->quiet, "No statistics");
  app->callback([app, flags, &exit_code] {
    const Result<int> status = run(*app, *flags);
    exit_code = status.ok() ? *status : report(status.error());
  });
}

}  // namespace ddtree
