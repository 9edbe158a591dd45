#include "cli/prompt_file.h"

#include <algorithm>

#include "base/json.h"
#include "base/mapped_file.h"

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

Result<std::string> read_file(const std::string& path) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  return std::string(file.text());
}

Result<std::vector<Prompt>> read_prompts(const std::string& path, const Tokenizer* tokenizer) {
  TRY_ASSIGN(const std::string text, read_file(path));
  std::vector<Prompt> prompts;
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    TRY_ASSIGN(Prompt prompt, read_line(line, path + ":" + std::to_string(number), tokenizer));
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) return Error{Code::kInvalidArgument, path + ": it holds no prompt"};
  return prompts;
}

}  // namespace ddtree
