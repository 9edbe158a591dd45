// One function a subcommand: declares its flags on `app` and, when it was the one called, sets `exit_code`.
#pragma once

namespace CLI {
class App;
}

namespace ddtree {

void add_run(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_serve(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_tokenize(CLI::App& app, int& exit_code);
void add_estimate(CLI::App& app, int& exit_code);

}  // namespace ddtree
