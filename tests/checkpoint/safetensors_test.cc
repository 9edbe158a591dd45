#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "file_writer.h"
#include "temp_dir.h"

namespace ddtree {
namespace {

using ::testing::AllOf;
using testing::FileTensor;
using ::testing::HasSubstr;
using testing::safetensors_file;
using testing::TempDir;
using testing::with_length;

Result<std::vector<TensorEntry>> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "m.safetensors");
}

void expect_error(const std::string& file, Code code, const std::vector<std::string>& parts) {
  const Result<std::vector<TensorEntry>> entries = parse(file);
  ASSERT_FALSE(entries.ok());
  EXPECT_EQ(entries.error().code, code) << entries.error().message;
  EXPECT_THAT(entries.error().message, HasSubstr("m.safetensors: "));
  for (const std::string& part : parts) EXPECT_THAT(entries.error().message, HasSubstr(part));
}

// A header as given, then `data_bytes` bytes.
std::string file_of(const std::string& header, size_t data_bytes) {
  return with_length(header) + std::string(data_bytes, '\0');
}

const std::vector<FileTensor> kTwo = {{"a", "F32", {2, 3}, {}}, {"b.weight", "BF16", {5}, {}}};

TEST(Safetensors, ReadsNamesShapesAndPlaces) {
  const std::string file = safetensors_file(kTwo);
  const auto entries = parse(file);
  ASSERT_TRUE(entries.ok()) << entries.error().message;
  ASSERT_EQ(entries->size(), 2u);
  const TensorEntry& a = (*entries)[0];
  const TensorEntry& b = (*entries)[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(describe(a), "F32 [2, 3]");
  EXPECT_EQ(a.bytes, 24);
  EXPECT_EQ(a.begin, static_cast<int64_t>(file.size()) - 34);
  EXPECT_EQ(describe(b), "BF16 [5]");
  EXPECT_EQ(b.begin, a.begin + 24);
}

TEST(Safetensors, ViewsShowTheData) {
  const TempDir dir;
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const std::string bytes(reinterpret_cast<const char*>(values), sizeof(values));
  const std::string path = dir.write("m.safetensors", safetensors_file({{"u8", "U8", {3}, "xyz"},
                                                                        {"m", "F32", {3, 2}, bytes},
                                                                        {"one", "I32", {}, {}},
                                                                        {"none", "F32", {0, 4}, {}}}));
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const TensorView m = file->view(file->entries()[1]);
  EXPECT_EQ(describe(m), "F32 [3, 2]");
  EXPECT_EQ(m.row_stride, 2);
  EXPECT_EQ(std::memcmp(m.data, values, sizeof(values)), 0);  // three bytes in: not aligned
  EXPECT_EQ(describe(file->view(file->entries()[2])), "I32 [1]");
  EXPECT_EQ(file->view(file->entries()[3]).bytes(), 0);
}

TEST(Safetensors, AcceptsMetadataPaddingAndAnyOrderOfOffsets) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"late":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},)"
      R"("early":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}       )";
  const auto entries = parse(file_of(header, 5));
  ASSERT_TRUE(entries.ok()) << entries.error().message;
  EXPECT_EQ((*entries)[0].begin, (*entries)[1].begin + 3);
  EXPECT_TRUE(parse(file_of("{}", 0)).ok());
}

TEST(Safetensors, RefusesFilesThatEndTooSoon) {
  const std::string file = safetensors_file(kTwo);
  expect_error("", Code::kCorrupt, {"has 0 bytes"});
  expect_error(file.substr(0, 7), Code::kCorrupt, {"has 7 bytes"});
  expect_error(file.substr(0, 8), Code::kCorrupt, {"only 0 follow", "truncated"});
  expect_error(file.substr(0, 40), Code::kCorrupt, {"only 32 follow", "truncated"});
  expect_error(file.substr(0, file.size() - 1), Code::kCorrupt, {"truncated", "1 bytes missing"});
  expect_error(file.substr(0, file.size() - 34), Code::kCorrupt, {"truncated", "34 bytes missing"});
}

TEST(Safetensors, RefusesAFileShorterByAPage) {
  const TempDir dir;
  const std::string file = safetensors_file({{"big", "U8", {8192}, {}}});
  const std::string path = dir.write("m.safetensors", file.substr(0, file.size() - 4096));
  const Result<SafetensorsFile> opened = SafetensorsFile::open(path);
  ASSERT_FALSE(opened.ok());
  EXPECT_THAT(opened.error().message, AllOf(HasSubstr(path), HasSubstr("4096 bytes missing")));
}

TEST(Safetensors, RefusesTrailingBytes) {
  expect_error(safetensors_file(kTwo) + std::string(16, '\0'), Code::kCorrupt, {"16 bytes follow the last tensor"});
}

TEST(Safetensors, RefusesLfsPointers) {
  expect_error("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", Code::kCorrupt,
               {"Git LFS pointer", "git lfs pull"});
}

TEST(Safetensors, RefusesHeadersBeyondTheLimit) {
  std::string huge = file_of("{}", 0);
  huge[7] = '\x7f';
  expect_error(huge, Code::kCorrupt, {"declares a header of 91", "at most 100000000"});
  std::string above = file_of("{}", 0);
  const uint64_t length = 100'000'001;
  std::memcpy(above.data(), &length, 8);
  expect_error(above, Code::kCorrupt, {"declares a header of 100000001 bytes, at most 100000000"});
}

TEST(Safetensors, RefusesHeadersThatAreNoHeader) {
  expect_error(file_of("", 0), Code::kCorrupt, {"does not begin with '{'"});
  expect_error(file_of(" {}", 0), Code::kCorrupt, {"does not begin with '{'"});
  expect_error(file_of("[]", 0), Code::kCorrupt, {"does not begin with '{'"});
  expect_error(file_of("{\"a\":", 0), Code::kCorrupt, {"not valid JSON"});
  expect_error(file_of("{\"a\": 1}", 0), Code::kCorrupt, {"a: is 1, must be an object"});
  expect_error(file_of("{\"__metadata__\": {\"n\": 1}}", 0), Code::kCorrupt,
               {"__metadata__.n: is 1, must be a string"});
  expect_error(file_of("{\"__metadata__\": 3}", 0), Code::kCorrupt, {"__metadata__"});
}

struct BadEntry {
  const char* entry;
  Code code;
  std::vector<std::string> parts;
};

TEST(Safetensors, RefusesBadEntriesByName) {
  const std::vector<BadEntry> cases = {
      {R"({"shape":[4],"data_offsets":[0,4]})", Code::kCorrupt, {"t.dtype is missing"}},
      {R"({"dtype":"U8","data_offsets":[0,4]})", Code::kCorrupt, {"t.shape is missing"}},
      {R"({"dtype":"U8","shape":[4]})", Code::kCorrupt, {"t.data_offsets is missing"}},
      {R"({"dtype":"Q3","shape":[4],"data_offsets":[0,4]})", Code::kUnsupported, {"t: dtype \"Q3\""}},
      {R"({"dtype":8,"shape":[4],"data_offsets":[0,4]})", Code::kCorrupt, {"t.dtype: is 8"}},
      {R"({"dtype":"U8","shape":4,"data_offsets":[0,4]})", Code::kCorrupt, {"t.shape: is 4"}},
      {R"({"dtype":"U8","shape":[-4],"data_offsets":[0,4]})", Code::kCorrupt, {"t.shape[0]: is -4"}},
      {R"({"dtype":"U8","shape":[4.0],"data_offsets":[0,4]})", Code::kCorrupt, {"t.shape[0]: is 4"}},
      {R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4]})", Code::kUnsupported, {"9 dimensions"}},
      {R"({"dtype":"U8","shape":[5],"data_offsets":[0,4]})",
       Code::kCorrupt,
       {"t: data_offsets hold 4 bytes, U8 [5] needs 5"}},
      {R"({"dtype":"F32","shape":[4],"data_offsets":[0,4]})", Code::kCorrupt, {"F32 [4] needs 16"}},
      {R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4]})", Code::kCorrupt, {"more than 2^63"}},
      {R"({"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})", Code::kCorrupt, {"more than 2^63"}},
      {R"({"dtype":"U8","shape":[4],"data_offsets":[0]})", Code::kCorrupt, {"t.data_offsets: must be two numbers"}},
      {R"({"dtype":"U8","shape":[4],"data_offsets":[4,0]})", Code::kCorrupt, {"t.data_offsets[1]: is 0"}},
      {R"({"dtype":"U8","shape":[4],"data_offsets":[-4,0]})", Code::kCorrupt, {"t.data_offsets[0]: is -4"}},
      {R"({"dtype":"U8","shape":[4],"data_offsets":[9223372036854775800,9223372036854775804]})",
       Code::kCorrupt,
       {"t.data_offsets: is beyond any file"}},
      {R"({"dtype":"U8","shape":[4],"data_offsets":[2,6]})", Code::kCorrupt, {"tensor t begins", "leaves a hole"}},
      {R"({"dtype":"U8","shape":[8],"data_offsets":[0,8]})", Code::kCorrupt, {"truncated", "4 bytes missing"}},
  };
  for (const BadEntry& c : cases) expect_error(file_of("{\"t\":" + std::string(c.entry) + "}", 4), c.code, c.parts);
}

TEST(Safetensors, RefusesOverlapsHolesAndDuplicates) {
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  expect_error(file_of("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6), Code::kCorrupt,
               {"tensor b", "overlaps"});
  expect_error(file_of("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4), Code::kCorrupt,
               {"overlaps"});
  expect_error(file_of("{" + a + R"(,"b":{"dtype":"U8","shape":[2],"data_offsets":[5,7]}})", 7), Code::kCorrupt,
               {"tensor b", "hole"});
  expect_error(file_of("{" + a + "," + a + "}", 4), Code::kCorrupt, {"key \"a\" appears twice"});
}

}  // namespace
}  // namespace ddtree
