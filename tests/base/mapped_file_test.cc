#include "base/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace ddtree {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "mapped_file_test_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << bytes;
    return dir_ + "/" + name;
  }

  std::string dir_;
};

TEST_F(MappedFileTest, ShowsTheBytes) {
  const std::string bytes = std::string("one\0two", 7) + std::string(10'000, 'x');
  const Result<MappedFile> file = MappedFile::open(write("f", bytes));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->text(), bytes);
  EXPECT_EQ(file->size(), bytes.size());
  EXPECT_EQ(file->bytes().size(), bytes.size());
}

TEST_F(MappedFileTest, AnEmptyFileIsEmpty) {
  const Result<MappedFile> file = MappedFile::open(write("f", ""));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->size(), 0u);
  EXPECT_EQ(file->text(), "");
}

TEST_F(MappedFileTest, Moves) {
  Result<MappedFile> opened = MappedFile::open(write("a", "aaa"));
  Result<MappedFile> other = MappedFile::open(write("b", "bbb"));
  ASSERT_TRUE(opened.ok() && other.ok());
  MappedFile file = *std::move(opened);
  EXPECT_EQ(file.text(), "aaa");
  file = *std::move(other);
  EXPECT_EQ(file.text(), "bbb");
  EXPECT_EQ(file.path(), dir_ + "/b");
}

TEST_F(MappedFileTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(MappedFile::open(dir_ + "/absent").error().code, Code::kNotFound);
  EXPECT_THAT(MappedFile::open(dir_ + "/absent").error().message, HasSubstr(dir_ + "/absent: cannot open"));
  EXPECT_EQ(MappedFile::open(write("f", "x") + "/below").error().code, Code::kNotFound);
  EXPECT_THAT(MappedFile::open(dir_).error().message, HasSubstr("is a directory"));
  ASSERT_EQ(::mkfifo((dir_ + "/fifo").c_str(), 0600), 0);
  EXPECT_THAT(MappedFile::open(dir_ + "/fifo").error().message, HasSubstr("is not a regular file"));
  EXPECT_THAT(MappedFile::open("/dev/zero").error().message, HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace ddtree
