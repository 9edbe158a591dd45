#include "text/added_tokens.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace ddtree {
namespace {

constexpr int64_t kReserved = 256;

// Bounds the table, whatever vocab_size says. The Kimi family has 256.
constexpr int64_t kMaxAdded = 65536;

}  // namespace

Result<AddedTokens> AddedTokens::parse(JsonValue config, int32_t first_id, int32_t vocab_size) {
  AddedTokens tokens(first_id);
  TRY_ASSIGN(const JsonValue decoder, config.get("added_tokens_decoder"));
  TRY_ASSIGN(const JsonMembers members, decoder.members());
  for (const auto [id_text, token] : members) TRY(tokens.add(id_text, token, vocab_size));

  const int64_t known = static_cast<int64_t>(tokens.entries_.size());
  const int64_t reserved = std::min(kReserved, vocab_size > 0 ? std::max<int64_t>(vocab_size - first_id, 0) : known);
  tokens.entries_.resize(std::max(known, reserved));
  for (int64_t i = 0; i < reserved; ++i) {
    Entry& entry = tokens.entries_[i];
    if (entry.text.empty()) entry = {fmt::format("<|reserved_token_{}|>", first_id + i), true};
  }
  TRY(tokens.index(decoder));
  return tokens;
}

Status AddedTokens::add(std::string_view id_text, JsonValue token, int32_t vocab_size) {
  int64_t id = -1;
  const auto [end, error] = std::from_chars(id_text.data(), id_text.data() + id_text.size(), id);
  if (error != std::errc() || end != id_text.data() + id_text.size() || id < 0)
    return token.error(Code::kCorrupt, "the key must be a token id");
  if (id < first_id_)
    return token.error(Code::kCorrupt, fmt::format("id {} is that of a BPE rank; tiktoken.model has ranks up to {}", id,
                                                   first_id_ - 1));
  if (vocab_size > 0 && id >= vocab_size)
    return token.error(Code::kCorrupt,
                       fmt::format("id {} is past the last one, {}, of the model's vocabulary", id, vocab_size - 1));
  if (id - first_id_ >= kMaxAdded)
    return token.error(Code::kUnsupported,
                       fmt::format("id {} is {} or more past the {} BPE ranks", id, kMaxAdded, first_id_));
  TRY_ASSIGN(const std::string_view text, token.get_string("content"));
  if (text.empty()) return token.error(Code::kCorrupt, "the content is empty; it would match everywhere");
  for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
    TRY_ASSIGN(const std::optional<bool> set, token.find_bool(flag));
    if (set.value_or(false)) return token.error(Code::kUnsupported, fmt::format("\"{}\": true is not supported", flag));
  }
  TRY_ASSIGN(const std::optional<bool> special, token.find_bool("special"));
  const size_t at = static_cast<size_t>(id - first_id_);
  if (at >= entries_.size()) entries_.resize(at + 1);
  if (!entries_[at].text.empty())
    return token.error(Code::kCorrupt, fmt::format("id {} is given twice, written differently", id));
  entries_[at] = {std::string(text), special.value_or(false)};
  return {};
}

Status AddedTokens::index(JsonValue config) {
  for (int32_t id = first_id_; id < end_id(); ++id)
    if (!text(id).empty()) by_text_.push_back(id);
  std::sort(by_text_.begin(), by_text_.end(), [this](int32_t a, int32_t b) { return text(a) < text(b); });
  for (size_t i = 0; i < by_text_.size(); ++i) {
    const std::string_view name = text(by_text_[i]);
    if (i > 0 && name == text(by_text_[i - 1]))
      return config.error(Code::kCorrupt,
                          fmt::format("\"{}\" has two ids, {} and {}", name, by_text_[i - 1], by_text_[i]));
    if (first_bytes_.empty() || first_bytes_.back() != name[0]) first_bytes_ += name[0];
  }
  return {};
}

const AddedTokens::Entry* AddedTokens::entry(int32_t id) const {
  return id < first_id_ || id >= end_id() ? nullptr : &entries_[id - first_id_];
}

std::string_view AddedTokens::text(int32_t id) const {
  const Entry* e = entry(id);
  return e == nullptr ? std::string_view() : e->text;
}

bool AddedTokens::is_special(int32_t id) const {
  const Entry* e = entry(id);
  return e != nullptr && e->special;
}

std::optional<int32_t> AddedTokens::find(std::string_view name) const {
  const auto it = std::lower_bound(by_text_.begin(), by_text_.end(), name,
                                   [this](int32_t id, std::string_view value) { return text(id) < value; });
  if (it == by_text_.end() || text(*it) != name) return std::nullopt;
  return *it;
}

// Narrows the sorted names byte by byte to those that begin as `text` does; a name that ends there comes first.
int32_t AddedTokens::longest_prefix(std::string_view text_at) const {
  int32_t longest = -1;
  auto first = by_text_.begin();
  auto last = by_text_.end();
  for (size_t depth = 0; depth < text_at.size(); ++depth) {
    const auto byte_at = [this, depth](int32_t id) { return static_cast<uint8_t>(text(id)[depth]); };
    const uint8_t byte = static_cast<uint8_t>(text_at[depth]);
    first = std::partition_point(first, last, [&](int32_t id) { return byte_at(id) < byte; });
    last = std::partition_point(first, last, [&](int32_t id) { return byte_at(id) == byte; });
    if (first != last && text(*first).size() == depth + 1) longest = *first++;
    if (first == last) break;
  }
  return longest;
}

std::optional<AddedTokens::Occurrence> AddedTokens::find_in(std::string_view in, size_t from) const {
  while (true) {
    const size_t at = in.find_first_of(first_bytes_, from);
    if (at == std::string_view::npos) return std::nullopt;
    const int32_t id = longest_prefix(in.substr(at));
    if (id >= 0) return Occurrence{at, text(id).size(), id};
    from = at + 1;
  }
}

}  // namespace ddtree
