// Log lines for machines: one JSON object a line on standard error, written at once so that threads never mix theirs.
//
//   log(LogLevel::kInfo, "listening", {{"host", host}, {"port", int64_t{port}}});
//   {"time":"2026-01-02T03:04:05.678Z","level":"info","event":"listening","host":"127.0.0.1","port":8000}
//
// Text of prompts and answers is never logged, nor keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace ddtree {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };
std::string_view log_level_name(LogLevel level);
std::optional<LogLevel> log_level_from_name(std::string_view name);

struct LogField {
  std::string key;
  std::variant<int64_t, double, bool, std::string> value;
};

void log(LogLevel level, std::string_view event, const std::vector<LogField>& fields = {});

void set_log_level(LogLevel level);  // lines below it are dropped; kInfo at first
void set_log_file(int descriptor);   // standard error at first

// The line without its end, as log() writes it at this time (seconds and milliseconds since 1970, UTC).
std::string log_line(int64_t unix_ms, LogLevel level, std::string_view event, const std::vector<LogField>& fields);

}  // namespace ddtree
