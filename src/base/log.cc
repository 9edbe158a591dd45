#include "base/log.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <ctime>

#include "base/json_writer.h"

namespace ddtree {
namespace {

constexpr std::array<std::string_view, 4> kLevels = {"debug", "info", "warning", "error"};

std::atomic<LogLevel> least_level{LogLevel::kInfo};
std::atomic<int> log_descriptor{STDERR_FILENO};

std::string iso_time(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  std::array<char, 40> text;
  const size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text.data() + length, text.size() - length, ".%03dZ", static_cast<int>(unix_ms % 1000));
  return text.data();
}

}  // namespace

std::string_view log_level_name(LogLevel level) { return kLevels[static_cast<size_t>(level)]; }

std::optional<LogLevel> log_level_from_name(std::string_view name) {
  for (size_t i = 0; i < kLevels.size(); ++i)
    if (kLevels[i] == name) return static_cast<LogLevel>(i);
  return std::nullopt;
}

std::string log_line(int64_t unix_ms, LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  JsonWriter out;
  out.begin_object().member("time", iso_time(unix_ms)).member("level", log_level_name(level)).member("event", event);
  for (const LogField& field : fields)
    std::visit([&](const auto& value) { out.member(field.key, value); }, field.value);
  out.end_object();
  return std::move(out).text();
}

void log(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  if (level < least_level) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string line =
      log_line(std::chrono::duration_cast<std::chrono::milliseconds>(now).count(), level, event, fields) + '\n';
  // A log that cannot be written must not stop the server: what did not fit is lost.
  [[maybe_unused]] const ssize_t written = write(log_descriptor, line.data(), line.size());
}

void set_log_level(LogLevel level) { least_level = level; }
void set_log_file(int descriptor) { log_descriptor = descriptor; }

}  // namespace ddtree
