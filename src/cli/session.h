// Session: a backend, a loaded pair and its tokenizer, as run, verify and bench need them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "engine/engine_core.h"
#include "model/load.h"
#include "text/tokenizer.h"

namespace ddtree {

struct Session {
  ModelPaths paths;
  std::unique_ptr<Backend> backend;
  LoadedModel model;
  std::optional<Tokenizer> tokenizer;  // none: the model's directory has none that we read
  std::string no_tokenizer;            // and why
  double load_seconds = 0;

  // An engine for `streams` at once, each with `context` tokens at most (0: as many as the model has).
  Result<std::unique_ptr<EngineCore>> engine(int32_t streams, int32_t context = 0);
  StepPrior step_prior() const;  // where mode auto starts with this pair on this backend
  Result<const Tokenizer*> text() const;
};

// Shows its progress on standard error if that is a terminal.
Result<std::unique_ptr<Session>> open_session(const ModelFlags& flags, int32_t max_streams);

// The limits every engine of the command line uses.
SchedulerOptions scheduler_options(int32_t streams);

// Prints "ddtree: message" on standard error and returns the exit status: 2 for what the caller can mend, else 1.
int report(const Error& error);

}  // namespace ddtree
