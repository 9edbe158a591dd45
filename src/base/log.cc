#include "base/log.h"

#include <atomic>
#include <cstdio>
#include <string>

namespace ddtree {
namespace {

std::atomic<LogLevel> minimum_level = LogLevel::kInfo;

void write_line(LogLevel level, std::string_view prefix, std::string_view message) {
  if (level < minimum_level.load(std::memory_order_relaxed)) return;
  std::string line(prefix);
  line += message;
  line += '\n';
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

void set_log_level(LogLevel level) { minimum_level.store(level, std::memory_order_relaxed); }

void log_info(std::string_view message) { write_line(LogLevel::kInfo, "ddtree: ", message); }
void log_warning(std::string_view message) { write_line(LogLevel::kWarning, "ddtree: warning: ", message); }
void log_error(std::string_view message) { write_line(LogLevel::kError, "ddtree: error: ", message); }

}  // namespace ddtree
