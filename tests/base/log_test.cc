#include "base/log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"

namespace ddtree {
namespace {

// What is logged while this lives.
class Capture {
 public:
  Capture() { set_log_file(fileno(file_)); }
  ~Capture() {
    set_log_file(STDERR_FILENO);
    std::fclose(file_);
  }
  std::vector<std::string> lines() {
    std::rewind(file_);
    std::vector<std::string> lines(1);
    for (int c; (c = std::fgetc(file_)) != EOF;)
      if (c == '\n') {
        lines.emplace_back();
      } else {
        lines.back() += static_cast<char>(c);
      }
    EXPECT_EQ(lines.back(), "") << "the last line has no end";
    lines.pop_back();
    return lines;
  }

 private:
  std::FILE* file_ = std::tmpfile();
};

TEST(Log, OneObjectALine) {
  EXPECT_EQ(log_line(1767322985678, LogLevel::kWarning, "an event",
                     {{"text", std::string("a\"b\nc\xff")}, {"int", int64_t{-3}}, {"real", 0.5}, {"flag", true}}),
            R"({"time":"2026-01-02T03:03:05.678Z","level":"warning","event":"an event",)"
            "\"text\":\"a\\\"b\\nc\xef\xbf\xbd\",\"int\":-3,\"real\":0.5,\"flag\":true}");
}

TEST(Log, LinesBelowTheLevelAreDropped) {
  Capture capture;
  log(LogLevel::kDebug, "dropped");
  log(LogLevel::kInfo, "kept");
  set_log_level(LogLevel::kError);
  log(LogLevel::kWarning, "dropped");
  set_log_level(LogLevel::kDebug);
  log(LogLevel::kDebug, "kept");
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(capture.lines().size(), 2u);
}

TEST(Log, ThreadsDoNotMixTheirLines) {
  Capture capture;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([] {
      for (int i = 0; i < 200; ++i) log(LogLevel::kInfo, "line", {{"text", std::string(300, 'x')}});
    });
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = capture.lines();
  EXPECT_EQ(lines.size(), 800u);
  for (const std::string& line : lines) {
    const auto document = parse_json(line, "line");
    ASSERT_TRUE(document.ok()) << line;
    EXPECT_EQ(*document->root().get_string("event"), "line");
  }
}

TEST(Log, LevelsHaveNames) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError})
    EXPECT_EQ(log_level_from_name(log_level_name(level)), level);
  EXPECT_FALSE(log_level_from_name("loud"));
}

}  // namespace
}  // namespace ddtree
