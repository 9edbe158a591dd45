#include "checkpoint/config_fields.h"

#include <optional>

#include <fmt/core.h>

#include "spec/logit_filter.h"

namespace ddtree {

std::string join(std::span<const std::string_view> names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " and " : ", ";
    out += names[i];
  }
  return out;
}

Result<std::string> find_architecture(const JsonValue& config) {
  const std::optional<JsonValue> list = config.find("architectures");
  if (!list || list->is_null()) return std::string();
  TRY_ASSIGN(const JsonElements elements, list->elements());
  if (elements.size() == 0) return std::string();
  TRY_ASSIGN(const std::string_view name, (*elements.begin()).as_string());
  return std::string(name);
}

Result<int64_t> parse_vocab_size(const JsonValue& config) { return config.get_int("vocab_size", 2, kMaxVocab); }

Status require_flag(const JsonValue& config, std::string_view key, bool wanted) {
  TRY_ASSIGN(const std::optional<bool> value, config.find_bool(key));
  if (value.value_or(wanted) == wanted) return {};
  return config.get(key)->error(Code::kUnsupported,
                                wanted ? "is false, only true is supported" : "is true, only false is supported");
}

Status require_name(const JsonValue& config, std::string_view key, std::string_view wanted) {
  TRY_ASSIGN(const std::optional<std::string_view> value, config.find_string(key));
  if (value.value_or(wanted) == wanted) return {};
  const JsonValue at = *config.get(key);
  return at.error(Code::kUnsupported, fmt::format("is {}, only \"{}\" is supported", at.text(), wanted));
}

Result<DType> parse_dtype(const JsonValue& outer, const JsonValue& inner) {
  for (const JsonValue& level : {inner, outer}) {
    for (const std::string_view key : {"dtype", "torch_dtype"}) {
      TRY_ASSIGN(const std::optional<std::string_view> name, level.find_string(key));
      if (!name) continue;
      if (*name == "bfloat16") return DType::kBF16;
      if (*name == "float16") return DType::kF16;
      if (*name == "float32") return DType::kF32;
      const JsonValue at = *level.get(key);
      return at.error(Code::kUnsupported,
                      fmt::format("is {}, only bfloat16, float16 and float32 are supported", at.text()));
    }
  }
  return DType::kBF16;
}

Status add_token_ids(const JsonValue& config, std::string_view key, int64_t vocab_size, std::vector<int32_t>* ids) {
  const std::optional<JsonValue> value = config.find(key);
  if (!value || value->is_null()) return {};
  if (!value->is_array()) {
    TRY_ASSIGN(const int64_t id, value->as_int(0, vocab_size - 1));
    ids->push_back(static_cast<int32_t>(id));
    return {};
  }
  TRY_ASSIGN(const JsonElements elements, value->elements());
  for (const JsonValue element : elements) {
    TRY_ASSIGN(const int64_t id, element.as_int(0, vocab_size - 1));
    ids->push_back(static_cast<int32_t>(id));
  }
  return {};
}

}  // namespace ddtree
