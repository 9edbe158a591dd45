#include "base/log.h"

#include <gtest/gtest.h>

namespace ddtree {
namespace {

std::string logged() {
  ::testing::internal::CaptureStderr();
  log_info("one");
  log_warning("two");
  log_error("three");
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, WritesLinesFromItsLevelOn) {
  EXPECT_EQ(logged(), "ddtree: one\nddtree: warning: two\nddtree: error: three\n");
  set_log_level(LogLevel::kError);
  EXPECT_EQ(logged(), "ddtree: error: three\n");
  set_log_level(LogLevel::kNone);
  EXPECT_EQ(logged(), "");
  set_log_level(LogLevel::kInfo);
}

}  // namespace
}  // namespace ddtree
