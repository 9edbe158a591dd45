#include "server/byte_tokenizer.h"

#include <string>

#include "text/vocabulary.h"

namespace ddtree {

const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = [] {
    const std::vector<std::string> names = {"<|im_system|>",
                                            "<|im_user|>",
                                            "<|im_assistant|>",
                                            "<|im_middle|>",
                                            "<|im_end|>",
                                            "<|im_start|>",
                                            "<think>",
                                            "</think>",
                                            "<tool_call>",
                                            "</tool_call>",
                                            "<tool_response>",
                                            "</tool_response>",
                                            "<|tool_calls_section_begin|>",
                                            "<|tool_calls_section_end|>",
                                            "<|tool_call_begin|>",
                                            "<|tool_call_argument_begin|>",
                                            "<|tool_call_end|>"};
    std::string added;
    for (size_t i = 0; i < names.size(); ++i) {
      const bool special = names[i].starts_with("<|im_");
      added += (i ? ", \"" : "\"") + std::to_string(256 + i) + R"(": {"content": ")" + names[i] + R"(", "special": )" +
               (special ? "true}" : "false}");
    }
    return *Tokenizer::parse(model_file(all_bytes()), config_file(added), kByteVocab);
  }();
  return tokenizer;
}

std::vector<int32_t> script_ids(std::string_view text) { return *byte_tokenizer().encode_with_special(text); }
int32_t end_id() { return *byte_tokenizer().special_id("<|im_end|>"); }

}  // namespace ddtree
