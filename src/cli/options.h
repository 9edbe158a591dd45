// The flags that run, verify and bench share, and their validation. The only place with their defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "backend/registry.h"
#include "engine/request.h"
#include "model/load.h"

namespace CLI {
class App;
}

namespace ddtree {

struct ModelFlags {
  std::string model;  // empty: the demo beside the program
  std::string draft = "auto";
  std::string draft_yarn = "ratio";
  std::optional<double> mla_norm_eps;
  std::string device = "cpu";
  std::string cpu_mode = "exact";
  std::string isa = "auto";
  int32_t threads = 0;
};

struct TextFlags {
  int32_t max_tokens = 128;
  bool ignore_eos = false;
  SamplingParams sampling;
};

struct SpecFlags {
  std::string mode = "tree";
  int32_t budget = 16;
  bool chain_first = false;
};

void add_model_flags(CLI::App& app, ModelFlags& flags);
void add_text_flags(CLI::App& app, TextFlags& flags);
void add_spec_flags(CLI::App& app, SpecFlags& flags);

Result<SpecOptions> spec_options(const SpecFlags& flags);
Result<BackendOptions> backend_options(const ModelFlags& flags);
Result<ModelOptions> model_options(const ModelFlags& flags);

// The directory of the demo pair: beside the program, or in the source tree that it was built in.
Result<std::string> demo_model();

}  // namespace ddtree
