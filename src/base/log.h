// One line per message on stderr, "ddtree: warning: …"; results go to stdout and never through here.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddtree {

enum class LogLevel : uint8_t { kInfo, kWarning, kError, kNone };

// Messages below `level` are dropped. kInfo at the start.
void set_log_level(LogLevel level);

// Whole lines even when threads write at once.
void log_info(std::string_view message);
void log_warning(std::string_view message);
void log_error(std::string_view message);

}  // namespace ddtree
