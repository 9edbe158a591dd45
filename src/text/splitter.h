// Pre-tokenisation: cuts text into the pieces that BPE then encodes one by one. The piece borders are part of a model's
// vocabulary, so only patterns that are known and tested against the reference tokenizer are accepted.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"

struct re_pattern_buffer;  // Oniguruma's compiled pattern

namespace ddtree {

// Kimi K2 … K2.6, Moonlight.
inline constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The reference tokenizer cuts long text before it looks for control tokens or pieces: every 400,000 characters, and
// inside a run of more than 25,000 characters that are all white space or all not. `text` must be valid UTF-8.
std::vector<std::string_view> cut_long_text(std::string_view text);

// Work allowed for one piece. The defaults are far above what kKimiPattern needs on any text that went through
// cut_long_text: a piece has at most 400,000 characters, one stack entry each, and backs up over less than 100,000.
struct SplitLimits {
  unsigned stack_entries = 1'000'000;
  unsigned long retries = 1'000'000;
};

// Immutable, so one may serve many threads.
class Splitter {
 public:
  static Result<Splitter> create(std::string_view pattern, SplitLimits limits = {});

  // Appends the pieces of `text` (views into it; together they are `text`). The text must be valid UTF-8.
  Status split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct FreeRegex {
    void operator()(re_pattern_buffer* regex) const;
  };
  using Regex = std::unique_ptr<re_pattern_buffer, FreeRegex>;

  Splitter(Regex regex, SplitLimits limits) : regex_(std::move(regex)), limits_(limits) {}

  Regex regex_;
  SplitLimits limits_;
};

}  // namespace ddtree
