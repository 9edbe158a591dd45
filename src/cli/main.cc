#include <CLI/CLI.hpp>

#include "cli/commands.h"

int main(int argc, char** argv) {
  CLI::App app("ddtree decodes large language models with draft trees, without changing their text.", "ddtree");
  app.set_version_flag("--version", "ddtree " DDTREE_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  ddtree::add_run(app, exit_code);
  ddtree::add_verify(app, exit_code);
  ddtree::add_serve(app, exit_code);
  ddtree::add_inspect(app, exit_code);
  ddtree::add_tokenize(app, exit_code);
  ddtree::add_estimate(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // 0: --help and --version
  }
  return exit_code;
}
