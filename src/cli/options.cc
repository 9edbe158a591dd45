#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <filesystem>

namespace ddtree {

void add_model_flags(CLI::App& app, ModelFlags& flags) {
  app.add_option("model", flags.model, "Directory of the model; default: the demo");
  app.add_option("--draft", flags.draft, "Directory of the drafter, auto (the one beside the model) or none")
      ->capture_default_str();
  app.add_option("--draft-yarn", flags.draft_yarn, "Factor of the drafter's cos and sin: ratio of mscales, or legacy")
      ->capture_default_str();
  app.add_option("--mla-norm-eps", flags.mla_norm_eps, "Of the norms inside MLA; default: the model's rms_norm_eps");
  app.add_option("--device", flags.device, "cpu, or ref: the slow reference")->capture_default_str();
  app.add_option("--cpu-mode", flags.cpu_mode, "exact: float32 throughout")->capture_default_str();
  app.add_option("--cpu-isa", flags.isa, "auto, portable or avx512")->capture_default_str();
  app.add_option("--threads", flags.threads, "Threads; 0: one per core")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
}

void add_text_flags(CLI::App& app, TextFlags& flags) {
  SamplingParams& s = flags.sampling;
  app.add_option("--max-tokens", flags.max_tokens, "Tokens to generate at most")->capture_default_str();
  app.add_flag("--ignore-eos", flags.ignore_eos, "Go on past the model's end tokens");
  app.add_option("--temperature", s.temperature, "0: greedy")->capture_default_str();
  app.add_option("--top-p", s.top_p, "Nucleus mass; 1: off")->capture_default_str();
  app.add_option("--top-k", s.top_k, "Most probable tokens to choose among; 0: off")->capture_default_str();
  app.add_option("--min-p", s.min_p, "Least probability relative to the most probable token; 0: off")
      ->capture_default_str();
  app.add_option("--seed", s.seed, "Equal seeds give equal text")->capture_default_str()->check(CLI::NonNegativeNumber);
  app.add_option("--repetition-penalty", s.repetition_penalty, "1: off")->capture_default_str();
  app.add_option("--presence-penalty", s.presence_penalty, "0: off")->capture_default_str();
  app.add_option("--frequency-penalty", s.frequency_penalty, "0: off")->capture_default_str();
  app.add_option("--min-tokens", s.min_tokens, "No end token before so many")->capture_default_str();
}

void add_spec_flags(CLI::App& app, SpecFlags& flags) {
  app.add_option("--spec", flags.mode, "off, chain, tree or auto")->capture_default_str();
  app.add_option("--budget", flags.budget, "Drafted nodes to verify in one pass, 0 to 255; with auto, at most")
      ->capture_default_str();
  app.add_flag("--chain-first", flags.chain_first, "Seed the tree with the drafter's chain");
}

Result<SpecOptions> spec_options(const SpecFlags& flags) {
  const auto mode = spec_mode_from_name(flags.mode);
  if (!mode) return Error{Code::kInvalidArgument, "--spec " + flags.mode + ": give off, chain, tree or auto"};
  if (flags.budget < 0 || flags.budget > kMaxNodes)
    return Error{Code::kInvalidArgument,
                 "--budget " + std::to_string(flags.budget) + ": give 0 to " + std::to_string(kMaxNodes)};
  return SpecOptions{*mode, flags.budget, flags.chain_first};
}

Result<BackendOptions> backend_options(const ModelFlags& flags) {
  if (flags.cpu_mode != "exact")
    return Error{Code::kUnsupported, "--cpu-mode " + flags.cpu_mode + ": this version has exact only"};
  return BackendOptions{flags.device, flags.threads, flags.isa};
}

Result<ModelOptions> model_options(const ModelFlags& flags) {
  ModelOptions options;
  options.target.mla_lora_norm_eps = flags.mla_norm_eps;
  if (flags.draft_yarn == "legacy") {
    options.drafter.amplitude = YarnAmplitude::kLegacy;
  } else if (flags.draft_yarn != "ratio") {
    return Error{Code::kInvalidArgument, "--draft-yarn " + flags.draft_yarn + ": give ratio or legacy"};
  }
  return options;
}

Result<std::string> demo_model() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& dir : {program / "models/demo", program / "../share/ddtree/models/demo",
                              program / "../../models/demo", program / "../../../models/demo"})
    if (fs::is_regular_file(dir / "target/config.json", error)) return dir.lexically_normal().string();
  return Error{Code::kNotFound,
               "the demo model is not beside the program (models/demo); give the directory of a model"};
}

}  // namespace ddtree
