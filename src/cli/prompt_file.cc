#include "cli/prompt_file.h"

#include <fstream>

#include "base/json.h"

namespace ddtree {
namespace {

Result<Prompt> read_line(std::string_view line, const std::string& where, const Tokenizer* tokenizer) {
  TRY_ASSIGN(const JsonDocument document, parse_json(line, where));
  const JsonValue root = document.root();
  Prompt prompt;
  TRY_ASSIGN(const auto genre, root.find_string("genre"));
  prompt.genre = genre.value_or("");
  if (root.find("ids")) {
    TRY_ASSIGN(const JsonValue ids, root.get("ids"));
    TRY_ASSIGN(const JsonElements elements, ids.elements());
    for (const JsonValue element : elements) {
      TRY_ASSIGN(const int64_t id, element.as_int(0, INT32_MAX));
      prompt.ids.push_back(static_cast<int32_t>(id));
    }
    return prompt;
  }
  TRY_ASSIGN(const std::string_view text, root.get_string("prompt"));
  if (tokenizer == nullptr)
    return Error{Code::kUnsupported,
                 where + ": a prompt as text needs a tokenizer, and this model's cannot be used; give ids"};
  TRY_ASSIGN(prompt.ids, tokenizer->encode(text));
  return prompt;
}

}  // namespace

Result<std::vector<Prompt>> read_prompts(const std::string& path, const Tokenizer* tokenizer) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Code::kNotFound, path + ": cannot be read"};
  std::vector<Prompt> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    TRY_ASSIGN(Prompt prompt, read_line(line, path + ":" + std::to_string(number), tokenizer));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return Error{Code::kInvalidArgument, path + ": it holds no prompt"};
  return prompts;
}

}  // namespace ddtree
