#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include <fmt/core.h>

#include "base/json.h"
#include "base/mapped_file.h"

namespace ddtree {
namespace {

constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";

// A shard is a plain file name beside the index: nothing in it may lead elsewhere.
Result<std::string_view> parse_shard_name(const JsonValue& value) {
  TRY_ASSIGN(const std::string_view name, value.as_string());
  if (name.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos || name == ".." || name == ".")
    return value.error(
        Code::kInvalidArgument,
        fmt::format("is {}, must be the name of a file beside the index, without directories", value.text()));
  if (!name.ends_with(".safetensors"))
    return value.error(Code::kUnsupported, fmt::format("is {}, only .safetensors shards are supported", value.text()));
  return name;
}

using ShardOf = std::unordered_map<std::string_view, uint32_t>;  // tensor name → shard, as the index says

// Every tensor must be in the shard that the index names, and in no other.
Status compare_with_index(const Checkpoint& checkpoint, const ShardOf& declared, const std::string& index_path) {
  size_t n_seen = 0;
  for (const Checkpoint::Tensor& tensor : checkpoint.tensors()) {
    const auto it = declared.find(tensor.entry->name);
    if (it == declared.end())
      return Error{Code::kCorrupt,
                   fmt::format("{}: tensor {} is not in {}", checkpoint.file(tensor), tensor.entry->name, kIndexName)};
    if (it->second != tensor.shard)
      return Error{Code::kCorrupt, fmt::format("{}: tensor {} is here, but {} places it in {}", checkpoint.file(tensor),
                                               tensor.entry->name, kIndexName, checkpoint.shards()[it->second].path())};
    ++n_seen;
  }
  if (n_seen == declared.size()) return {};
  for (const auto& [name, shard] : declared)
    if (!checkpoint.find(name))
      return Error{Code::kCorrupt, fmt::format("{}: tensor {} is not in its shard {}", index_path, name,
                                               checkpoint.shards()[shard].path())};
  return {};
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::string& dir) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(dir, ignored)) return Error{Code::kNotFound, dir + ": no such directory"};
  Checkpoint checkpoint(dir);
  const std::string single = fmt::format("{}/{}", dir, kSingleName);
  const std::string index = fmt::format("{}/{}", dir, kIndexName);
  if (std::filesystem::exists(single, ignored)) {
    TRY(checkpoint.open_single(single));
  } else if (std::filesystem::exists(index, ignored)) {
    TRY(checkpoint.open_sharded(index));
  } else {
    return Error{Code::kNotFound, fmt::format("{}: holds neither {} nor {}", dir, kSingleName, kIndexName)};
  }
  return checkpoint;
}

Status Checkpoint::open_single(const std::string& path) {
  TRY_ASSIGN(SafetensorsFile file, SafetensorsFile::open(path));
  shards_.push_back(std::move(file));
  collect_tensors();
  return {};
}

Status Checkpoint::open_sharded(const std::string& index_path) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(index_path));
  if (is_lfs_pointer(file.text()))
    return Error{Code::kCorrupt, index_path + ": is a Git LFS pointer, not the file itself"};
  TRY_ASSIGN(const JsonDocument document, parse_json(file.text(), index_path));
  TRY_ASSIGN(const JsonValue map, document.root().get("weight_map"));
  TRY_ASSIGN(const JsonMembers members, map.members());
  if (const std::optional<JsonValue> metadata = document.root().find("metadata"))
    if (const Result<std::optional<int64_t>> size = metadata->find_int("total_size", 0); size.ok())
      declared_bytes_ = *size;

  std::map<std::string_view, uint32_t> numbers;  // shards in the order of their names
  for (const auto [tensor, value] : members) {
    TRY_ASSIGN(const std::string_view name, parse_shard_name(value));
    numbers.emplace(name, 0);
  }
  for (auto& [name, number] : numbers) {
    number = static_cast<uint32_t>(shards_.size());
    TRY_ASSIGN(SafetensorsFile shard, SafetensorsFile::open(fmt::format("{}/{}", dir_, name)));
    shards_.push_back(std::move(shard));
  }
  ShardOf declared;
  declared.reserve(members.size());
  for (const auto [tensor, value] : members) declared.emplace(tensor, numbers.at(*value.as_string()));
  collect_tensors();
  return compare_with_index(*this, declared, index_path);
}

void Checkpoint::collect_tensors() {
  size_t n = 0;
  for (const SafetensorsFile& shard : shards_) n += shard.entries().size();
  tensors_.reserve(n);
  by_name_.reserve(n);
  for (uint32_t shard = 0; shard < shards_.size(); ++shard) {
    for (const TensorEntry& entry : shards_[shard].entries()) {
      by_name_.emplace(entry.name, tensors_.size());
      tensors_.push_back({&entry, shard});
    }
  }
}

std::optional<size_t> Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) return std::nullopt;
  return it->second;
}

int64_t Checkpoint::total_bytes() const {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors_) bytes += tensor.entry->bytes;
  return bytes;
}

}  // namespace ddtree
