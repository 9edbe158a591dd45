// ddtree verify: proof on the user's own prompts that no draft mode, budget or batch changes the text.

#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>

#include <fmt/core.h>

#include "base/json_writer.h"
#include "cli/commands.h"
#include "cli/prompt_file.h"
#include "cli/session.h"
#include "engine/divergence.h"

namespace ddtree {
namespace {

struct VerifyFlags {
  ModelFlags model;
  TextFlags text;
  std::string prompts;
  std::vector<std::string> modes = {"off", "chain", "tree"};
  std::vector<int32_t> budgets = {8, 32, 64};
  std::vector<int32_t> streams = {1, 3, 16};
  bool chain_first = false, json = false;
};

// One way of decoding all the prompts.
struct Arm {
  SpecOptions spec;
  int32_t streams = 1;  // decoded at the same time
};

// What mode auto made of an arm.
struct Drafting {
  int64_t passes = 0, drafted = 0;
  std::string last;  // its decision on the text that ended last

  void add(const RequestStats& stats) {
    passes += stats.steps;
    drafted += stats.steps - stats.passes_by_nodes[0];
    if (!stats.decision.empty()) last = stats.decision;
  }
};

struct Finding {
  Arm arm;
  size_t prompt = 0;
  Divergence at;
};

std::string arm_name(const Arm& arm) {
  std::string name(spec_mode_name(arm.spec.mode));
  if (arm.spec.mode != SpecMode::kOff) name += ":" + std::to_string(arm.spec.budget);
  return name + " × " + std::to_string(arm.streams) + (arm.streams == 1 ? " stream" : " streams");
}

// Plain decoding with several streams, then every mode and budget with every number of streams.
Result<std::vector<Arm>> arms(const VerifyFlags& flags) {
  std::vector<Arm> out;
  for (const std::string& name : flags.modes) {
    const auto mode = spec_mode_from_name(name);
    if (!mode) return Error{Code::kInvalidArgument, "--modes: " + name + " is none of off, chain, tree and auto"};
    const std::vector<int32_t> budgets = mode == SpecMode::kOff ? std::vector<int32_t>{0} : flags.budgets;
    for (int32_t budget : budgets)
      for (int32_t streams : flags.streams)
        if (*mode != SpecMode::kOff || streams > 1) out.push_back({{*mode, budget, flags.chain_first}, streams});
  }
  return out;
}

// Decodes every prompt, `arm.streams` at a time: when one ends the next begins, so lengths in a batch differ.
Result<std::vector<DecodedText>> decode_all(EngineCore& engine, const std::vector<Prompt>& prompts,
                                            const TextFlags& text, const Arm& arm, Drafting& drafting) {
  std::vector<DecodedText> outputs(prompts.size());
  std::optional<Error> error;
  int32_t active = 0;
  size_t next = 0;
  while (active > 0 || next < prompts.size()) {
    for (; active < arm.streams && next < prompts.size(); ++next, ++active) {
      Request request;
      request.prompt = prompts[next].ids;
      request.max_tokens = text.max_tokens;
      request.ignore_eos = text.ignore_eos;
      request.sampling = text.sampling;
      request.spec = arm.spec;
      TRY(engine.validate(request));
      TRY(engine.submit(next, std::move(request), [&](Event&& event) {
        DecodedText& output = outputs[event.request];
        output.tokens.insert(output.tokens.end(), event.tokens.begin(), event.tokens.end());
        output.finish = event.finish;
        if (event.finish != FinishReason::kNone) --active;
        if (event.error) error = event.error;
        if (event.stats) drafting.add(*event.stats);
      }));
    }
    engine.step();
    if (error) return *error;
  }
  return outputs;
}

void print_json(const std::vector<Finding>& findings, int64_t tokens, const std::vector<Arm>& arms,
                const std::vector<Drafting>& drafting) {
  JsonWriter out;
  out.begin_object().member("identical", findings.empty()).member("tokens", tokens).member("arms", arms.size());
  out.key("auto").begin_array();
  for (size_t i = 0; i < arms.size(); ++i) {
    if (arms[i].spec.mode != SpecMode::kAuto) continue;
    out.begin_object().member("budget", arms[i].spec.budget).member("streams", arms[i].streams);
    out.member("passes", drafting[i].passes).member("drafted_passes", drafting[i].drafted);
    out.member("decision", drafting[i].last).end_object();
  }
  out.end_array();
  out.key("divergences").begin_array();
  for (const Finding& f : findings) {
    out.begin_object().member("mode", spec_mode_name(f.arm.spec.mode)).member("budget", f.arm.spec.budget);
    out.member("streams", f.arm.streams).member("prompt", f.prompt).member("token", f.at.token);
    out.member("expected", f.at.expected).member("got", f.at.got).member("margin", f.at.margin).end_object();
  }
  out.end_array().end_object();
  fmt::print("{}\n", std::move(out).text());
}

void print_text(const Arm& arm, const std::vector<Finding>& found, int64_t tokens, const Drafting& drafting) {
  fmt::print("{:<28} {:>7} tokens  {}\n", arm_name(arm), tokens, found.empty() ? "identical" : "DIVERGES");
  if (arm.spec.mode == SpecMode::kAuto)
    fmt::print("  drafted in {} of {} passes; {}\n", drafting.drafted, drafting.passes, drafting.last);
  for (const Finding& f : found)
    fmt::print("  prompt {} token {}: {} instead of {}, plain decoding's margin {:.3g}\n", f.prompt, f.at.token,
               f.at.got, f.at.expected, f.at.margin);
}

Result<int> verify(const VerifyFlags& flags) {
  TRY_ASSIGN(const std::vector<Arm> all, arms(flags));
  const int32_t streams = *std::max_element(flags.streams.begin(), flags.streams.end());
  if (*std::min_element(flags.streams.begin(), flags.streams.end()) < 1 || streams > 64)
    return Error{Code::kInvalidArgument, "--streams: give numbers from 1 to 64"};
  TRY_ASSIGN(const std::unique_ptr<Session> session, open_session(flags.model, streams));
  TRY_ASSIGN(const std::vector<Prompt> prompts,
             read_prompts(flags.prompts, session->tokenizer ? &*session->tokenizer : nullptr));
  for (const Arm& arm : all)
    if (arm.spec.mode != SpecMode::kOff && session->model.drafter == nullptr)
      return Error{Code::kInvalidArgument,
                   "--modes: " + arm_name(arm) + " needs a drafter; give --draft or --modes off"};
  size_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.ids.size());
  const int32_t context =
      static_cast<int32_t>(std::min<int64_t>(INT32_MAX, longest + int64_t{flags.text.max_tokens} + 1));
  TRY_ASSIGN(const std::unique_ptr<EngineCore> engine, session->engine(streams, context));

  Drafting none;
  TRY_ASSIGN(const std::vector<DecodedText> plain,
             decode_all(*engine, prompts, flags.text, {{SpecMode::kOff, 0, false}, 1}, none));
  std::vector<Finding> findings;
  std::vector<Drafting> drafting;
  int64_t total = 0;
  for (const Arm& arm : all) {
    TRY_ASSIGN(const std::vector<DecodedText> outputs,
               decode_all(*engine, prompts, flags.text, arm, drafting.emplace_back()));
    std::vector<Finding> found;
    int64_t tokens = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      tokens += std::ssize(outputs[i].tokens);
      if (const auto at = first_divergence(plain[i], outputs[i])) found.push_back({arm, i, *at});
    }
    total += tokens;
    if (!flags.json) print_text(arm, found, tokens, drafting.back());
    findings.insert(findings.end(), found.begin(), found.end());
  }
  if (flags.json) {
    print_json(findings, total, all, drafting);
  } else {
    fmt::print("{}: {} tokens in {} arms against plain decoding\n", findings.empty() ? "identical" : "NOT identical",
               total, all.size());
  }
  return findings.empty() ? 0 : 1;
}

}  // namespace

void add_verify(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<VerifyFlags>();
  CLI::App* app = parent.add_subcommand("verify", "Check that drafting leaves the text as it is");
  add_model_flags(*app, flags->model);
  add_text_flags(*app, flags->text);
  app->add_option("--prompts", flags->prompts, "JSON lines with \"prompt\" or \"ids\"")->required();
  app->add_option("--modes", flags->modes, "Of off, chain, tree and auto")->delimiter(',')->capture_default_str();
  app->add_option("--budgets", flags->budgets, "For chain, tree and auto")->delimiter(',')->capture_default_str();
  app->add_option("--streams", flags->streams, "Prompts decoded at the same time")
      ->delimiter(',')
      ->capture_default_str();
  app->add_flag("--chain-first", flags->chain_first, "Seed the trees with the drafter's chain");
  app->add_flag("--json", flags->json, "One JSON object instead of text");
  app->callback([flags, &exit_code] {
    const Result<int> status = verify(*flags);
    exit_code = status.ok() ? *status : report(status.error());
  });
}

}  // namespace ddtree
