// Checkpoint: the tensors of a model directory by name, whichever shard they are in. Opening one validates every header
// against its file's size, and the index against the headers; no tensor's bytes are read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/safetensors.h"

namespace ddtree {

class Checkpoint {
 public:
  struct Tensor {
    const TensorEntry* entry;
    uint32_t shard;
  };

  // `dir` holds model.safetensors, or model.safetensors.index.json and the shards it names.
  static Result<Checkpoint> open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const std::vector<SafetensorsFile>& shards() const { return shards_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // shard by shard, in the order of their headers
  std::optional<size_t> find(std::string_view name) const;         // index into tensors()

  TensorView view(const Tensor& tensor) const { return shards_[tensor.shard].view(*tensor.entry); }
  const std::string& file(const Tensor& tensor) const { return shards_[tensor.shard].path(); }
  int64_t total_bytes() const;                                               // of all tensors
  std::optional<int64_t> declared_bytes() const { return declared_bytes_; }  // the index's metadata.total_size

 private:
  explicit Checkpoint(std::string dir) : dir_(std::move(dir)) {}
  Status open_single(const std::string& path);
  Status open_sharded(const std::string& index_path);
  void collect_tensors();

  std::string dir_;
  std::vector<SafetensorsFile> shards_;
  std::vector<Tensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys live in the entries
  std::optional<int64_t> declared_bytes_;
};

}  // namespace ddtree
