// ddtree inspect: what a model directory holds and what it would need, from its headers alone.

#include <CLI/CLI.hpp>
#include <memory>

#include <fmt/core.h>

#include "checkpoint/inspect.h"
#include "cli/commands.h"
#include "cli/session.h"

namespace ddtree {
namespace {

struct InspectFlags {
  std::string model, draft = "auto";
  int64_t tp = 1;
  bool json = false;
};

Status print_inspection(const InspectFlags& flags) {
  std::string dir = flags.model;
  if (dir.empty()) {
    TRY_ASSIGN(dir, demo_model());
  }
  TRY_ASSIGN(const ModelPaths paths, locate_model(dir, flags.draft));
  TRY_ASSIGN(const Inspection inspection, inspect(paths.target, {.tp = flags.tp, .drafter_dir = paths.draft}));
  fmt::print("{}", flags.json ? to_json(inspection) : to_text(inspection));
  return {};
}

}  // namespace

void add_inspect(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* app =
      parent.add_subcommand("inspect", "Show a model's configuration, tensors and memory needs, without loading it");
  app->add_option("model", flags->model, "Directory of the model or of a drafter; default: the demo");
  app->add_option("--draft", flags->draft, "Directory of the drafter, auto (the one beside the model) or none")
      ->capture_default_str();
  app->add_option("--tp", flags->tp, "Ranks that share the weights")->capture_default_str()->check(CLI::Range(1, 1024));
  app->add_flag("--json", flags->json, "One JSON object");
  app->callback([flags, &exit_code] {
    const Status status = print_inspection(*flags);
    exit_code = status.ok() ? 0 : report(status.error());
  });
}

}  // namespace ddtree
