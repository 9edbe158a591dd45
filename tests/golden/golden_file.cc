#include "golden/golden_file.h"

#include <cstring>

namespace ddtree {
namespace {

template <class From, class To>
std::vector<To> values(const SafetensorsFile& file, const TensorEntry& entry) {
  std::vector<From> raw(entry.bytes / sizeof(From));
  std::memcpy(raw.data(), file.view(entry).data, entry.bytes);
  return std::vector<To>(raw.begin(), raw.end());
}

}  // namespace

GoldenFile::GoldenFile(const std::string& path) : file_(*SafetensorsFile::open(DDTREE_SOURCE_DIR "/" + path)) {}

const TensorEntry& GoldenFile::entry(const std::string& name) const {
  for (const TensorEntry& entry : file_.entries())
    if (entry.name == name) return entry;
  CHECK_EQ(name, "");
  return file_.entries()[0];
}

std::vector<int32_t> GoldenFile::ids(const std::string& name) const {
  const TensorEntry& e = entry(name);
  if (e.dtype == DType::kI16) return values<int16_t, int32_t>(file_, e);
  CHECK(e.dtype == DType::kI32);
  return values<int32_t, int32_t>(file_, e);
}

std::vector<float> GoldenFile::floats(const std::string& name) const {
  CHECK(entry(name).dtype == DType::kF32);
  return values<float, float>(file_, entry(name));
}

}  // namespace ddtree
