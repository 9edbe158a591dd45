#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "checkpoint/safetensors.h"
#include "file_writer.h"

namespace ddtree {
namespace {

using testing::FileTensor;

std::vector<FileTensor> arbitrary_tensors() {
  const std::vector<std::string> dtypes = {"F32", "BF16", "F16", "F64", "I64", "I32", "I8", "U8", "BOOL"};
  std::vector<FileTensor> tensors(*rc::gen::inRange(0, 12));
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].name = "t" + std::to_string(i) + std::string(static_cast<size_t>(*rc::gen::inRange(0, 20)), '.');
    tensors[i].dtype = *rc::gen::elementOf(dtypes);
    tensors[i].shape.resize(*rc::gen::inRange(0, 5));
    for (int64_t& d : tensors[i].shape) d = *rc::gen::inRange(0, 6);
  }
  return tensors;
}

Result<std::vector<TensorEntry>> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "m");
}

// What every accepted file guarantees, whatever its header says.
void check_guarantees(const std::vector<TensorEntry>& entries, int64_t file_size) {
  std::set<std::string> names;
  int64_t data = 0;
  for (const TensorEntry& e : entries) {
    RC_ASSERT(names.insert(e.name).second);
    RC_ASSERT(e.begin >= 8 && e.bytes >= 0 && e.begin + e.bytes <= file_size);
    int64_t bytes = dtype_size(e.dtype);
    for (int i = 0; i < e.rank; ++i) bytes *= e.dim[i];
    RC_ASSERT(bytes == e.bytes);
    data += bytes;
  }
  RC_ASSERT(data <= file_size - 8);
}

RC_GTEST_PROP(SafetensorsProperty, EveryValidFileIsReadBack, ()) {
  const std::vector<FileTensor> tensors = arbitrary_tensors();
  const std::string file = testing::safetensors_file(tensors);
  const auto entries = parse(file);
  RC_ASSERT(entries.ok());
  RC_ASSERT(entries->size() == tensors.size());
  int64_t begin = 8 + static_cast<int64_t>(testing::header_json(tensors).size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry& e = (*entries)[i];
    RC_ASSERT(e.name == tensors[i].name);
    RC_ASSERT(dtype_name(e.dtype) == tensors[i].dtype);
    RC_ASSERT(std::vector<int64_t>(e.dim.begin(), e.dim.begin() + e.rank) == tensors[i].shape);
    RC_ASSERT(e.begin == begin);
    begin += e.bytes;
  }
}

RC_GTEST_PROP(SafetensorsProperty, EveryPrefixIsRefused, ()) {
  const std::string file = testing::safetensors_file(arbitrary_tensors());
  const size_t length = *rc::gen::inRange<size_t>(0, file.size());
  RC_ASSERT(!parse(file.substr(0, length)).ok());
}

RC_GTEST_PROP(SafetensorsProperty, AnyChangedBytesAreReadSafely, ()) {
  std::string file = testing::safetensors_file(arbitrary_tensors());
  const int changes = *rc::gen::inRange(1, 5);
  for (int i = 0; i < changes; ++i)
    file[*rc::gen::inRange<size_t>(0, file.size())] =
        *rc::gen::oneOf(rc::gen::elementOf(std::string("0123456789-.,:[]{}\"eE tfn")), rc::gen::arbitrary<char>());
  const auto entries = parse(file);
  if (entries.ok()) check_guarantees(*entries, static_cast<int64_t>(file.size()));
}

RC_GTEST_PROP(SafetensorsProperty, AnyOffsetsAreReadSafely, ()) {
  const std::vector<int64_t> limits = {0, 1, 7, 8, 100, int64_t{1} << 31, int64_t{1} << 62, INT64_MAX - 8, INT64_MAX};
  std::string header = "{";
  const int n = *rc::gen::inRange(1, 4);
  for (int i = 0; i < n; ++i) {
    const auto number = [&] { return std::to_string(*rc::gen::elementOf(limits)); };
    header += (i > 0 ? std::string(",\"t") : std::string("\"t")) + std::to_string(i) + R"(":{"dtype":"U8","shape":[)";
    header += number() + "," + number() + R"(],"data_offsets":[)" + number() + "," + number() + "]}";
  }
  const std::string file = testing::with_length(header + "}") + std::string(100, 'x');
  const auto entries = parse(file);
  if (entries.ok()) check_guarantees(*entries, static_cast<int64_t>(file.size()));
}

}  // namespace
}  // namespace ddtree
