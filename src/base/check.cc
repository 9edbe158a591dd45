#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include "base/result.h"

namespace ddtree {

void check_failed(const char* file, int line, const char* expression, const std::string& detail) {
  std::fprintf(stderr, "ddtree: internal error at %s:%d: CHECK(%s) failed%s%s\n", file, line, expression,
               detail.empty() ? "" : ": ", detail.c_str());
  std::abort();
}

const char* code_name(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kNotFound: return "not found";
    case Code::kCorrupt: return "corrupt";
    case Code::kUnsupported: return "unsupported";
    case Code::kExhausted: return "exhausted";
    case Code::kCancelled: return "cancelled";
    case Code::kDeviceLost: return "device lost";
  }
  return "unknown";
}

}  // namespace ddtree
