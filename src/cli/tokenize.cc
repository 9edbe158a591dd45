// ddtree tokenize: text to ids, or ids to text.

#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>

#include <fmt/core.h>

#include "base/json_writer.h"
#include "cli/commands.h"
#include "cli/session.h"

namespace ddtree {
namespace {

struct TokenizeFlags {
  std::string model, text;
  std::vector<int32_t> decode;
  bool special = false;
};

Result<int> tokenize(const CLI::App& app, const TokenizeFlags& flags) {
  std::string dir = flags.model;
  if (dir.empty()) {
    TRY_ASSIGN(dir, demo_model());
  }
  TRY_ASSIGN(const ModelPaths paths, locate_model(dir, "none"));
  TRY_ASSIGN(const Tokenizer tokenizer, Tokenizer::load(paths.target));
  JsonWriter out;
  if (app.count("--decode") > 0) {
    for (int32_t id : flags.decode)
      if (tokenizer.token_bytes(id).empty())
        return Error{Code::kInvalidArgument, fmt::format("--decode: {} is no token of this vocabulary", id)};
    out.begin_object().member("text", tokenizer.decode(flags.decode)).end_object();
  } else {
    const std::string text =
        app.count("--text") > 0 ? flags.text : std::string{std::istreambuf_iterator<char>(std::cin), {}};
    TRY_ASSIGN(const std::vector<int32_t> ids,
               flags.special ? tokenizer.encode_with_special(text) : tokenizer.encode(text));
    out.begin_object().key("ids").begin_array();
    for (int32_t id : ids) out.value(id);
    out.end_array().key("pieces").begin_array();
    for (int32_t id : ids) out.value(tokenizer.token_bytes(id));
    out.end_array().end_object();
  }
  fmt::print("{}\n", std::move(out).text());
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& parent, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* app = parent.add_subcommand("tokenize", "Show how a text becomes tokens");
  app->add_option("model", flags->model, "Directory of the model; default: the demo");
  auto* text = app->add_option("--text", flags->text, "The text; standard input if it is not given");
  app->add_option("--decode", flags->decode, "Token ids to turn into text, separated by commas")
      ->delimiter(',')
      ->excludes(text);
  app->add_flag("--special", flags->special, "Read control tokens in the text");
  app->callback([app, flags, &exit_code] {
    const Result<int> status = tokenize(*app, *flags);
    exit_code = status.ok() ? *status : report(status.error());
  });
}

}  // namespace ddtree
