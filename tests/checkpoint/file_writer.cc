#include "file_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace ddtree::testing {
namespace {

int64_t dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> sizes = {{"F64", 8},  {"I64", 8},  {"F32", 4},     {"I32", 4},
                                                       {"BF16", 2}, {"F16", 2},  {"I16", 2},     {"I8", 1},
                                                       {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  return sizes.at(dtype);
}

std::string shape_json(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

}  // namespace

int64_t FileTensor::bytes() const {
  int64_t n = dtype_bytes(dtype);
  for (const int64_t d : shape) n *= d;
  return n;
}

std::string header_json(const std::vector<FileTensor>& tensors) {
  std::string out = "{";
  int64_t offset = 0;
  for (const FileTensor& t : tensors) {
    if (out.size() > 1) out += ',';
    out += '"' + t.name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":" + shape_json(t.shape);
    out += ",\"data_offsets\":[" + std::to_string(offset) + ',';
    offset += t.bytes();
    out += std::to_string(offset) + "]}";
  }
  return out + "}";
}

std::string with_length(const std::string& header) {
  const uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  out += header;
  return out;
}

std::string safetensors_file(const std::vector<FileTensor>& tensors) {
  std::string out = with_length(header_json(tensors));
  for (const FileTensor& t : tensors) {
    std::string data = t.data;
    data.resize(static_cast<size_t>(t.bytes()));
    out += data;
  }
  return out;
}

std::string index_json(const Shards& shards) {
  int64_t total = 0;
  std::string map;
  for (const auto& [file, tensors] : shards) {
    for (const FileTensor& t : tensors) {
      if (!map.empty()) map += ',';
      map += '"' + t.name + "\":\"" + file + '"';
      total += t.bytes();
    }
  }
  return "{\"metadata\":{\"total_size\":" + std::to_string(total) + "},\"weight_map\":{" + map + "}}";
}

void write_shards(const TempDir& dir, const Shards& shards) {
  for (const auto& [file, tensors] : shards) dir.write(file, safetensors_file(tensors));
  dir.write("model.safetensors.index.json", index_json(shards));
}

void write_sparse_shards(const TempDir& dir, const Shards& shards) {
  for (const auto& [file, tensors] : shards) {
    const std::string header = with_length(header_json(tensors));
    int64_t size = static_cast<int64_t>(header.size());
    for (const FileTensor& t : tensors) size += t.bytes();
    const std::string path = dir.write(file, header);
    ASSERT_EQ(::truncate(path.c_str(), size), 0) << path << ": the file system must support sparse files of " << size;
  }
  dir.write("model.safetensors.index.json", index_json(shards));
}

}  // namespace ddtree::testing
