// Prompt files: JSON lines {"genre":"code","prompt":"…"} or {"ids":[…]}; genre is optional.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace ddtree {

// The bytes of a file.
Result<std::string> read_file(const std::string& path);

struct Prompt {
  std::string genre;
  std::vector<int32_t> ids;
};

// `tokenizer` may be null if every line has ids. Messages name the file and the line.
Result<std::vector<Prompt>> read_prompts(const std::string& path, const Tokenizer* tokenizer);

}  // namespace ddtree
