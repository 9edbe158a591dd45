// ddtree inspect: what a model directory holds and what it would need, from headers alone.

#include "checkpoint/inspect.h"

#include <CLI/CLI.hpp>

#include <fmt/core.h>

#include "cli/commands.h"
#include "cli/session.h"

namespace ddtree {
namespace {

struct InspectFlags {
  std::string dir, draft = "auto";
  int64_t tp = 1;
  bool json = false;
};

Result<int> inspect_model(const InspectFlags& flags) {
  TRY_ASSIGN(const ModelPaths paths, locate_model(flags.dir, flags.draft));
  TRY_ASSIGN(const Inspection inspection, inspect(paths.target, {flags.tp, paths.draft}));
  fmt::print("{}", flags.json ? to_json(inspection) + "\n" : to_text(inspection));
  return 0;
}

}  // namespace

void add_inspect(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* app =
      parent.add_subcommand("inspect", "Show a model's configuration, tensors and memory plan without loading it");
  app->add_option("model", flags->dir, "Directory of the model")->required();
  app->add_option("--draft", flags->draft, "Directory of the drafter, auto or none")->capture_default_str();
  app->add_option("--tp", flags->tp, "GPUs that share the model")->capture_default_str();
  app->add_flag("--json", flags->json, "One JSON object instead of text");
  app->callback([flags, &exit_code] {
    const Result<int> status = inspect_model(*flags);
    exit_code = status.ok() ? *status : report(status.error());
  });
}

}  // namespace ddtree
