#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "file_writer.h"

namespace ddtree {
namespace {

using testing::FileTensor;
using ::testing::HasSubstr;
using testing::TempDir;

const FileTensor kA{"a.weight", "F32", {2}, "aaaaaaaa"};
const FileTensor kB{"b.weight", "BF16", {3, 1}, "bbbbbb"};
const FileTensor kC{"c.weight", "I32", {1}, "cccc"};
constexpr const char* kIndex = "model.safetensors.index.json";

void expect_error(const TempDir& dir, Code code, const std::vector<std::string>& parts) {
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_FALSE(checkpoint.ok());
  EXPECT_EQ(checkpoint.error().code, code) << checkpoint.error().message;
  for (const std::string& part : parts) EXPECT_THAT(checkpoint.error().message, HasSubstr(part));
}

TEST(Checkpoint, OpensASingleFile) {
  const TempDir dir;
  dir.write("model.safetensors", testing::safetensors_file({kA, kB}));
  const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->total_bytes(), 14);
  EXPECT_FALSE(checkpoint->find("c.weight").has_value());
  const Checkpoint::Tensor& b = checkpoint->tensors()[*checkpoint->find("b.weight")];
  EXPECT_EQ(describe(checkpoint->view(b)), "BF16 [3, 1]");
  EXPECT_EQ(std::string(static_cast<const char*>(checkpoint->view(b).data), 6), "bbbbbb");
}

TEST(Checkpoint, OpensShards) {
  const TempDir dir;
  testing::write_shards(dir, {{"model-2.safetensors", {kC, kA}}, {"model-1.safetensors", {kB}}});
  Result<Checkpoint> opened = Checkpoint::open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const Checkpoint checkpoint = *std::move(opened);
  EXPECT_EQ(checkpoint.shards().size(), 2u);
  EXPECT_EQ(checkpoint.declared_bytes(), 18);
  for (const FileTensor& t : {kA, kB, kC}) {
    const Checkpoint::Tensor& found = checkpoint.tensors()[*checkpoint.find(t.name)];
    EXPECT_EQ(std::string(static_cast<const char*>(checkpoint.view(found).data), t.data.size()), t.data);
    EXPECT_EQ(checkpoint.file(found), dir.file(t.name == "b.weight" ? "model-1.safetensors" : "model-2.safetensors"));
  }
}

TEST(Checkpoint, TotalSizeIsOptionalAndOnlyReported) {
  const TempDir dir;
  testing::write_shards(dir, {{"s.safetensors", {kA}}});
  for (const char* metadata :
       {"", R"("metadata": {}, )", R"("metadata": {"total_size": "8"}, )", R"("metadata": null, )"}) {
    dir.write(kIndex, std::string("{") + metadata + R"("weight_map": {"a.weight": "s.safetensors"}})");
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_FALSE(checkpoint->declared_bytes().has_value());
  }
}

TEST(Checkpoint, RefusesDirectoriesWithoutWeights) {
  const TempDir dir;
  expect_error(dir, Code::kNotFound, {dir.path(), "model.safetensors", kIndex});
  EXPECT_EQ(Checkpoint::open(dir.file("absent")).error().code, Code::kNotFound);
  const std::string file = dir.write("file", "x");
  EXPECT_EQ(Checkpoint::open(file).error().code, Code::kNotFound);
}

TEST(Checkpoint, NamesTheBadShard) {
  const TempDir dir;
  testing::write_shards(dir, {{"good.safetensors", {kA}}, {"short.safetensors", {kB}}});
  const std::string bytes = testing::safetensors_file({kB});
  dir.write("short.safetensors", bytes.substr(0, bytes.size() - 1));
  expect_error(dir, Code::kCorrupt, {dir.file("short.safetensors"), "1 bytes missing"});
  dir.write("short.safetensors", "");
  expect_error(dir, Code::kCorrupt, {dir.file("short.safetensors"), "has 0 bytes"});
  dir.write("short.safetensors", "version https://git-lfs.github.com/spec/v1\n");
  expect_error(dir, Code::kCorrupt, {dir.file("short.safetensors"), "Git LFS pointer"});
  std::filesystem::remove(dir.file("short.safetensors"));
  expect_error(dir, Code::kNotFound, {dir.file("short.safetensors")});
  std::filesystem::create_directory(dir.file("short.safetensors"));
  expect_error(dir, Code::kInvalidArgument, {dir.file("short.safetensors"), "is a directory"});
}

TEST(Checkpoint, RefusesAnIndexThatContradictsItsShards) {
  const TempDir dir;
  testing::write_shards(dir, {{"1.safetensors", {kA}}, {"2.safetensors", {kB}}});
  const auto index = [&](const std::string& map) { dir.write(kIndex, "{\"weight_map\": {" + map + "}}"); };
  index(R"("a.weight": "1.safetensors", "b.weight": "2.safetensors", "c.weight": "2.safetensors")");
  expect_error(dir, Code::kCorrupt, {kIndex, "c.weight is not in its shard", "2.safetensors"});
  index(R"("a.weight": "2.safetensors", "b.weight": "1.safetensors")");
  expect_error(dir, Code::kCorrupt, {"1.safetensors: tensor a.weight is here", "places it in", "2.safetensors"});
  dir.write("2.safetensors", testing::safetensors_file({kA, kB}));
  index(R"("a.weight": "1.safetensors", "b.weight": "2.safetensors")");
  expect_error(dir, Code::kCorrupt, {"2.safetensors: tensor a.weight is here", "places it in", "1.safetensors"});
  index(R"("b.weight": "2.safetensors")");
  expect_error(dir, Code::kCorrupt, {"2.safetensors: tensor a.weight is not in", kIndex});
}

TEST(Checkpoint, RefusesShardNamesThatLeadElsewhere) {
  const TempDir outer;
  outer.write("outside.safetensors", testing::safetensors_file({kA}));
  const TempDir dir;
  dir.write("inside.safetensors", testing::safetensors_file({kA}));
  for (const std::string& name :
       {std::string("../outside.safetensors"), outer.file("outside.safetensors"), std::string("sub/inside.safetensors"),
        std::string("./inside.safetensors"), std::string(".."), std::string("inside.safetensors\\u0000.safetensors"),
        std::string("a\\\\inside.safetensors")}) {
    dir.write(kIndex, "{\"weight_map\": {\"a.weight\": \"" + name + "\"}}");
    expect_error(dir, Code::kInvalidArgument, {"weight_map.a.weight: is ", "without directories"});
  }
  for (const char* name : {"pytorch_model.bin", ""}) {
    dir.write(kIndex, std::string("{\"weight_map\": {\"a.weight\": \"") + name + "\"}}");
    expect_error(dir, Code::kUnsupported, {"weight_map.a.weight", "only .safetensors"});
  }
}

TEST(Checkpoint, RefusesIndexesThatAreNoIndex) {
  const TempDir dir;
  for (const char* text :
       {"", "[]", "{}", "{\"weight_map\": []}", "{\"weight_map\": {\"a\": 1}}", "{\"weight_map\": null}",
        "{\"weight_map\": {\"a\": \"x.safetensors\", \"a\": \"x.safetensors\"}}"}) {
    dir.write(kIndex, text);
    const Result<Checkpoint> checkpoint = Checkpoint::open(dir.path());
    ASSERT_FALSE(checkpoint.ok()) << text;
    EXPECT_THAT(checkpoint.error().message, HasSubstr(dir.file(kIndex)));
  }
  dir.write(kIndex, "version https://git-lfs.github.com/spec/v1\n");
  expect_error(dir, Code::kCorrupt, {kIndex, "Git LFS pointer"});
}

}  // namespace
}  // namespace ddtree
