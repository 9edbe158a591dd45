#include "server/openai_fields.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>

#include <fmt/core.h>

namespace ddtree {
namespace {

using Options = GenerationOptions;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStopIds = 1024;
constexpr size_t kMaxSaltBytes = 256;
constexpr size_t kMaxRequestIdBytes = 128;
constexpr double kMaxBias = 100;  // beyond it nothing more can change

// These would run a client's code or templates, or read its tensors.
constexpr std::array<std::string_view, 8> kRefused = {
    "logits_processors", "custom_logit_processor", "prompt_embeds", "lora_request", "lora_path",
    "vllm_xargs",        "kv_transfer_params",     "chat_template"};

constexpr std::array<DefaultField, 25> kDefaultsOfBoth = {{
    {"priority", "0"},
    {"structured_outputs", "null"},
    {"guided_json", "null"},
    {"guided_regex", "null"},
    {"guided_choice", "null"},
    {"guided_grammar", "null"},
    {"json_schema", "null"},
    {"regex", "null"},
    {"ebnf", "null"},
    {"grammar", "null"},
    {"prompt_logprobs", "null"},
    {"use_beam_search", "false"},
    {"best_of", "1"},
    {"length_penalty", "1"},
    {"allowed_token_ids", "null"},
    {"bad_words", "[]"},
    {"truncate_prompt_tokens", "null"},
    {"mirostat", "0"},
    {"dry_multiplier", "0"},
    {"xtc_probability", "0"},
    {"typical_p", "1"},
    {"dynatemp_range", "0"},
    {"lora", "[]"},
    {"suffix", "\"\""},
    {"modalities", "null"},
}};

bool is_default(JsonValue value, std::string_view only) {
  if (value.is_bool()) return only == (*value.as_bool() ? "true" : "false");
  if (value.is_array()) return only == "[]" && value.elements()->size() == 0;
  if (value.is_string()) return only == fmt::format("\"{}\"", *value.as_string());
  if (!value.is_number()) return false;
  double wanted = 0;
  const auto [end, error] = std::from_chars(only.data(), only.data() + only.size(), wanted);
  return error == std::errc() && end == only.data() + only.size() && *value.as_double() == wanted;
}

template <auto kMember>
Status read_flag(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(out.*kMember, value.as_bool());
  return {};
}

template <auto kMember>
Status read_text(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(out.*kMember, value.as_string());
  return {};
}

// Limits that are open intervals are the engine's to check.
template <auto kMember, int kMin, int64_t kMax>
Status read_number(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(const double number, value.as_double(kMin, static_cast<double>(kMax)));
  out.sampling.*kMember = static_cast<float>(number);
  return {};
}

Result<int32_t> read_int32(JsonValue value, int64_t min, int64_t max = kMaxInt32) {
  TRY_ASSIGN(const int64_t number, value.as_int(min, max));
  return static_cast<int32_t>(number);
}

template <auto kMember, int64_t kMin>
Status read_count(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(out.sampling.*kMember, read_int32(value, kMin));
  return {};
}

Status read_max_tokens(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(out.max_tokens, read_int32(value, 1));
  return {};
}

Status read_n(JsonValue value, Options& out, const ApiLimits& limits) {
  TRY_ASSIGN(out.n, read_int32(value, 1, limits.choices));
  return {};
}

Status read_seed(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(const int64_t seed, value.as_int());
  out.sampling.seed = static_cast<uint64_t>(seed);
  out.has_seed = true;
  return {};
}

Status read_stop(JsonValue value, Options& out, const ApiLimits& limits) {
  const auto add = [&](JsonValue stop) -> Status {
    TRY_ASSIGN(const std::string_view text, stop.as_string());
    if (text.empty()) return stop.error(Code::kInvalidArgument, "is empty");
    if (text.size() > limits.stop_bytes)
      return stop.error(Code::kInvalidArgument,
                        fmt::format("has {} bytes, at most {} are accepted", text.size(), limits.stop_bytes));
    out.stop.emplace_back(text);
    return {};
  };
  if (value.is_string()) return add(value);
  if (!value.is_array())
    return value.error(Code::kInvalidArgument, fmt::format("is {}, must be a string or an array", value.text()));
  const JsonElements stops = *value.elements();
  if (std::cmp_greater(stops.size(), limits.stop_strings))
    return value.error(Code::kInvalidArgument,
                       fmt::format("has {} strings, at most {} are accepted", stops.size(), limits.stop_strings));
  for (const JsonValue stop : stops) TRY(add(stop));
  return {};
}

Status read_stop_token_ids(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(const JsonElements ids, value.elements());
  if (ids.size() > kMaxStopIds)
    return value.error(Code::kInvalidArgument,
                       fmt::format("has {} entries, at most {} are accepted", ids.size(), kMaxStopIds));
  for (const JsonValue id : ids) {
    TRY_ASSIGN(out.stop_token_ids.emplace_back(), read_int32(id, 0));
  }
  return {};
}

Status read_logit_bias(JsonValue value, Options& out, const ApiLimits& limits) {
  TRY_ASSIGN(const JsonMembers members, value.members());
  if (std::cmp_greater(members.size(), limits.logit_bias))
    return value.error(Code::kInvalidArgument,
                       fmt::format("has {} entries, at most {} are accepted", members.size(), limits.logit_bias));
  for (const auto [key, bias] : members) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || key != std::to_string(id))
      return value.error(Code::kInvalidArgument, "has a key that is not a token id written as a decimal number");
    TRY_ASSIGN(const double number, bias.as_double());
    out.sampling.logit_bias.emplace_back(id, static_cast<float>(std::clamp(number, -kMaxBias, kMaxBias)));
  }
  return {};
}

Status read_stream_options(JsonValue value, Options& out, const ApiLimits&) {
  TRY(value.members());
  TRY_ASSIGN(const std::optional<bool> usage, value.find_bool("include_usage"));
  TRY_ASSIGN(const std::optional<bool> continuous, value.find_bool("continuous_usage_stats"));
  out.include_usage = usage.value_or(false);
  out.continuous_usage = continuous.value_or(false);
  return {};
}

Status read_response_format(JsonValue value, Options&, const ApiLimits&) {
  TRY_ASSIGN(const JsonValue type, value.get("type"));
  TRY_ASSIGN(const std::string_view name, type.as_string());
  if (name == "text") return {};
  return type.error(Code::kUnsupported,
                    fmt::format("is {}: constrained output is not supported, only \"text\"", type.text()));
}

Status read_speculation(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(const JsonMembers members, value.members());
  for (const auto [key, member] : members) {
    if (member.is_null()) continue;
    if (key == "mode") {
      TRY_ASSIGN(const std::string_view name, member.as_string());
      const std::optional<SpecMode> mode = spec_mode_from_name(name);
      if (!mode)
        return member.error(Code::kInvalidArgument,
                            fmt::format("is {}, must be off, chain, tree or auto", member.text()));
      out.spec.mode = *mode;
    } else if (key == "budget") {
      TRY_ASSIGN(out.spec.budget, read_int32(member, 0, kMaxNodes));
    } else {
      return value.error(Code::kInvalidArgument, "has a field that is neither mode nor budget");
    }
  }
  return {};
}

Status read_cache_salt(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(out.cache_salt, value.as_string());
  if (!out.cache_salt.empty() && out.cache_salt.size() <= kMaxSaltBytes) return {};
  return value.error(Code::kInvalidArgument,
                     fmt::format("has {} bytes, must be 1 to {}", out.cache_salt.size(), kMaxSaltBytes));
}

Status read_request_id(JsonValue value, Options& out, const ApiLimits&) {
  TRY_ASSIGN(out.request_id, value.as_string());
  const bool visible =
      std::all_of(out.request_id.begin(), out.request_id.end(), [](char c) { return c > ' ' && c < 127; });
  if (visible && !out.request_id.empty() && out.request_id.size() <= kMaxRequestIdBytes) return {};
  return value.error(Code::kInvalidArgument,
                     fmt::format("must be 1 to {} visible ASCII characters", kMaxRequestIdBytes));
}

constexpr int64_t kMaxPenalty = 1'000'000;

constexpr std::array<Field<Options>, 29> kFields = {{
    {"model", read_text<&Options::model>},
    {"stream", read_flag<&Options::stream>},
    {"stream_options", read_stream_options},
    {"max_tokens", read_max_tokens},
    {"max_completion_tokens", read_max_tokens},
    {"min_tokens", read_count<&SamplingParams::min_tokens, 0>},
    {"temperature", read_number<&SamplingParams::temperature, 0, 2>},
    {"top_p", read_number<&SamplingParams::top_p, 0, 1>},
    {"top_k", read_count<&SamplingParams::top_k, -1>},
    {"min_p", read_number<&SamplingParams::min_p, 0, 1>},
    {"presence_penalty", read_number<&SamplingParams::presence_penalty, -2, 2>},
    {"frequency_penalty", read_number<&SamplingParams::frequency_penalty, -2, 2>},
    {"repetition_penalty", read_number<&SamplingParams::repetition_penalty, 0, kMaxPenalty>},
    {"seed", read_seed},
    {"stop", read_stop},
    {"stop_token_ids", read_stop_token_ids},
    {"ignore_eos", read_flag<&Options::ignore_eos>},
    {"include_stop_str_in_output", read_flag<&Options::include_stop>},
    {"skip_special_tokens", read_flag<&Options::skip_special_tokens>},
    {"n", read_n},
    {"logit_bias", read_logit_bias},
    {"response_format", read_response_format},
    {"return_token_ids", read_flag<&Options::return_token_ids>},
    {"return_tokens_as_token_ids", read_flag<&Options::tokens_as_ids>},
    {"timings", read_flag<&Options::timings>},
    {"timings_per_token", read_flag<&Options::timings>},
    {"speculation", read_speculation},
    {"cache_salt", read_cache_salt},
    {"request_id", read_request_id},
}};

}  // namespace

std::span<const Field<Options>> generation_fields() { return kFields; }

Status check_other_field(std::string_view name, JsonValue value, std::span<const DefaultField> defaults) {
  if (std::find(kRefused.begin(), kRefused.end(), name) != kRefused.end())
    return value.error(Code::kUnsupported, "is never accepted from clients");
  for (const std::span<const DefaultField> list : {std::span<const DefaultField>(kDefaultsOfBoth), defaults})
    for (const DefaultField& field : list)
      if (field.name == name && !is_default(value, field.only))
        return value.error(Code::kUnsupported,
                           fmt::format("is not supported; leave it out (only {} is accepted)", field.only));
  return {};
}

Status finish_generation_options(JsonValue root, Options& options) {
  TRY_ASSIGN(const std::optional<int64_t> limit, root.find_int("max_completion_tokens"));
  if (limit) options.max_tokens = static_cast<int32_t>(*limit);
  if (options.max_tokens && options.sampling.min_tokens > *options.max_tokens)
    return root.find("min_tokens")
        ->error(Code::kInvalidArgument,
                fmt::format("is {}, more than max_tokens, {}", options.sampling.min_tokens, *options.max_tokens));
  const std::optional<JsonValue> stream_options = root.find("stream_options");
  if (stream_options && !stream_options->is_null() && !options.stream)
    return stream_options->error(Code::kInvalidArgument, "is only for requests with stream: true");
  return {};
}

}  // namespace ddtree
