#include "text/tokenizer.h"

#include <filesystem>
#include <limits>

#include <fmt/format.h>

#include "base/json.h"
#include "base/mapped_file.h"
#include "base/utf8.h"

namespace ddtree {
namespace {

constexpr size_t kMaxConfigBytes = size_t{16} << 20;  // it may hold a chat template
constexpr std::string_view kTokenizerClass = "TikTokenTokenizer";

std::string join_path(const std::string& dir, const char* file) {
  return dir.empty() ? file : (std::filesystem::path(dir) / file).string();
}

bool exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// The rows of the model's embedding, or 0 for a directory that holds a tokenizer alone.
Result<int32_t> read_vocab_size(const std::string& dir) {
  const std::string path = join_path(dir, "config.json");
  if (!exists(path)) return 0;
  TRY_ASSIGN(const MappedFile file, MappedFile::open(path));
  TRY_ASSIGN(const JsonDocument document, parse_json(file.text(), path, {.max_bytes = kMaxConfigBytes}));
  const JsonValue root = document.root();
  const JsonValue text_config = root.find("text_config").value_or(root);  // of a model with vision
  TRY_ASSIGN(const int64_t size, text_config.get_int("vocab_size", 1, std::numeric_limits<int32_t>::max()));
  return static_cast<int32_t>(size);
}

// The id of the token that `key` names, as a string or as an object with its content.
Result<std::optional<int32_t>> named_id(JsonValue config, const char* key, const AddedTokens& added) {
  const std::optional<JsonValue> value = config.find(key);
  if (!value || value->is_null()) return std::optional<int32_t>();
  TRY_ASSIGN(const std::string_view name, value->is_object() ? value->get_string("content") : value->as_string());
  const std::optional<int32_t> id = added.find(name);
  if (!id) return value->error(Code::kCorrupt, fmt::format("\"{}\" is not in added_tokens_decoder", name));
  return id;
}

Status check_utf8(std::string_view text) {
  if (const std::optional<size_t> at = find_invalid_utf8(text))
    return Error{Code::kInvalidArgument, fmt::format("the text is not valid UTF-8 at byte {} (0x{:02x})", *at,
                                                     static_cast<uint8_t>(text[*at]))};
  return {};
}

}  // namespace

Result<Tokenizer> Tokenizer::load(const std::string& dir) {
  const std::string model_path = join_path(dir, "tiktoken.model");
  if (!exists(model_path) && exists(join_path(dir, "tokenizer.json")))
    return Error{
        Code::kUnsupported,
        fmt::format("{}: has tokenizer.json but no tiktoken.model; only the tokenizers of the Kimi family, which "
                    "come as tiktoken.model, are supported",
                    dir)};
  TRY_ASSIGN(const MappedFile model, MappedFile::open(model_path));
  TRY_ASSIGN(const MappedFile config, MappedFile::open(join_path(dir, "tokenizer_config.json")));
  TRY_ASSIGN(const int32_t vocab_size, read_vocab_size(dir));
  return parse(model.text(), config.text(), vocab_size, dir);
}

Result<Tokenizer> Tokenizer::parse(std::string_view model_bytes, std::string_view config_bytes, int32_t vocab_size,
                                   const std::string& dir) {
  TRY_ASSIGN(const JsonDocument document,
             parse_json(config_bytes, join_path(dir, "tokenizer_config.json"), {.max_bytes = kMaxConfigBytes}));
  const JsonValue config = document.root();
  // The split pattern is in code beside the files, not in them; the class is what tells which one it is.
  TRY_ASSIGN(const JsonValue tokenizer_class, config.get("tokenizer_class"));
  TRY_ASSIGN(const std::string_view class_name, tokenizer_class.as_string());
  if (class_name != kTokenizerClass)
    return tokenizer_class.error(
        Code::kUnsupported, fmt::format("\"{}\" is not known; only \"{}\" (Kimi) is", class_name, kTokenizerClass));

  const std::string model_name = join_path(dir, "tiktoken.model");
  TRY_ASSIGN(Bpe bpe, Bpe::parse(model_bytes, model_name));
  if (vocab_size > 0 && bpe.size() > vocab_size)
    return Error{Code::kCorrupt, fmt::format("{}: {} ranks, but vocab_size of the model's config.json is {}",
                                             model_name, bpe.size(), vocab_size)};
  TRY_ASSIGN(AddedTokens added, AddedTokens::parse(config, bpe.size(), vocab_size));
  TRY_ASSIGN(Splitter splitter, Splitter::create(kKimiPattern));

  Tokenizer tokenizer(std::move(bpe), std::move(splitter), std::move(added));
  tokenizer.vocab_size_ = vocab_size > 0 ? vocab_size : tokenizer.added_.end_id();
  TRY_ASSIGN(tokenizer.bos_id_, named_id(config, "bos_token", tokenizer.added_));
  TRY_ASSIGN(tokenizer.eos_id_, named_id(config, "eos_token", tokenizer.added_));
  return tokenizer;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text) const {
  TRY(check_utf8(text));
  std::vector<int32_t> ids;
  for (const std::string_view chunk : cut_long_text(text)) TRY(encode_ordinary(chunk, ids));
  return ids;
}

// The cut comes first, as in the reference: an added token that it goes through is text.
Result<std::vector<int32_t>> Tokenizer::encode_with_special(std::string_view text) const {
  TRY(check_utf8(text));
  std::vector<int32_t> ids;
  for (const std::string_view chunk : cut_long_text(text)) {
    size_t at = 0;
    while (const std::optional<AddedTokens::Occurrence> token = added_.find_in(chunk, at)) {
      TRY(encode_ordinary(chunk.substr(at, token->begin - at), ids));
      ids.push_back(token->id);
      at = token->begin + token->length;
    }
    TRY(encode_ordinary(chunk.substr(at), ids));
  }
  return ids;
}

Status Tokenizer::encode_ordinary(std::string_view text, std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pieces;
  TRY(splitter_.split(text, pieces));
  for (const std::string_view piece : pieces) bpe_.encode(piece, ids);
  return {};
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids)
    if (!skip_special || !is_special(id)) bytes += token_bytes(id);
  return bytes;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0) return {};
  return id < bpe_.size() ? bpe_.bytes(id) : added_.text(id);
}

}  // namespace ddtree
