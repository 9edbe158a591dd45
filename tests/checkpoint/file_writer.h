// Writes safetensors files and indexes for tests, from the format's description and not with the code under test.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "temp_dir.h"

namespace ddtree::testing {

struct FileTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string data = {};  // empty: zeros

  int64_t bytes() const;
};

// The JSON header alone, offsets in the order given.
std::string header_json(const std::vector<FileTensor>& tensors);

// 8 bytes of length, then `header`.
std::string with_length(const std::string& header);

// A whole file.
std::string safetensors_file(const std::vector<FileTensor>& tensors);

// File name → tensors; writes the shards and model.safetensors.index.json.
using Shards = std::map<std::string, std::vector<FileTensor>>;
std::string index_json(const Shards& shards);
void write_shards(const TempDir& dir, const Shards& shards);

// As write_shards, but the data are holes of sparse files: only headers take room.
void write_sparse_shards(const TempDir& dir, const Shards& shards);

}  // namespace ddtree::testing
