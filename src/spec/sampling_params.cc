#include "spec/sampling_params.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string>

namespace ddtree {
namespace {

constexpr float kMaxTemperature = 2;
constexpr float kMaxPenalty = 2;  // presence and frequency, either sign
constexpr float kMaxBias = 100;   // either sign
constexpr size_t kMaxBiases = 1024;
constexpr size_t kMaxBadWords = 1024;
constexpr size_t kMaxBadWordLength = 64;
constexpr size_t kMaxStopIds = 1024;
constexpr int32_t kMaxLogprobs = 20;

template <class Number>
std::string text(Number value) {
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return {buffer.data(), end};
}

Error out_of_range(const std::string& field, const std::string& value, const std::string& limit) {
  return {Code::kInvalidArgument, field + ": " + value + " is not " + limit};
}

// NaN is in no range.
Status check_range(const char* field, float value, float low, float high) {
  if (value >= low && value <= high) return {};
  return out_of_range(field, text(value), "in " + text(low) + " … " + text(high));
}

Status check_count(const std::string& field, size_t count, size_t low, size_t high) {
  if (count >= low && count <= high) return {};
  return Error{Code::kInvalidArgument,
               field + ": has " + text(count) + " entries, not " + text(low) + " to " + text(high)};
}

Status check_token(const std::string& field, int32_t id, int32_t vocab) {
  if (id >= 0 && id < vocab) return {};
  return out_of_range(field, "token " + text(id), "in 0 … " + text(vocab - 1));
}

Status check_lists(const SamplingParams& p, int32_t vocab) {
  TRY(check_count("logit_bias", p.logit_bias.size(), 0, kMaxBiases));
  for (const auto& [id, bias] : p.logit_bias) {
    TRY(check_token("logit_bias", id, vocab));
    TRY(check_range("logit_bias", bias, -kMaxBias, kMaxBias));
  }
  TRY(check_count("bad_words", p.bad_words.size(), 0, kMaxBadWords));
  for (size_t i = 0; i < p.bad_words.size(); ++i) {
    const std::string field = "bad_words[" + text(i) + "]";
    TRY(check_count(field, p.bad_words[i].size(), 1, kMaxBadWordLength));
    for (const int32_t id : p.bad_words[i]) TRY(check_token(field, id, vocab));
  }
  TRY(check_count("stop_ids", p.stop_ids.size(), 0, kMaxStopIds));
  for (const int32_t id : p.stop_ids) TRY(check_token("stop_ids", id, vocab));
  return {};
}

}  // namespace

Status validate(const SamplingParams& p, int32_t vocab) {
  TRY(check_range("temperature", p.temperature, 0, kMaxTemperature));
  if (!(p.top_p > 0 && p.top_p <= 1)) return out_of_range("top_p", text(p.top_p), "above 0 and at most 1");
  TRY(check_range("min_p", p.min_p, 0, 1));
  if (p.top_k < -1) return out_of_range("top_k", text(p.top_k), "−1 or 0 (off) or more");
  if (!(p.repetition_penalty > 0 && std::isfinite(p.repetition_penalty)))
    return out_of_range("repetition_penalty", text(p.repetition_penalty), "above 0 and finite");
  TRY(check_range("presence_penalty", p.presence_penalty, -kMaxPenalty, kMaxPenalty));
  TRY(check_range("frequency_penalty", p.frequency_penalty, -kMaxPenalty, kMaxPenalty));
  if (p.min_tokens < 0) return out_of_range("min_tokens", text(p.min_tokens), "0 or more");
  if (p.logprobs < -1 || p.logprobs > kMaxLogprobs)
    return out_of_range("logprobs", text(p.logprobs), "in 0 … " + text(kMaxLogprobs) + " (or −1, off)");
  return check_lists(p, vocab);
}

bool needs_full_logits(const SamplingParams& p) {
  return !is_greedy(p) || p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0 ||
         !p.logit_bias.empty() || !p.bad_words.empty() || (p.min_tokens > 0 && !p.stop_ids.empty()) || p.logprobs >= 0;
}

}  // namespace ddtree
