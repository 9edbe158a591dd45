#include "server/api_error.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace ddtree {
namespace {

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// "messages[3].role: is 1, must be a string" and "prompt is missing" name their field first.
std::string param_of(std::string_view message) {
  constexpr std::string_view kPath = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-[]";
  const size_t end = std::min(message.find_first_not_of(kPath), message.size());
  for (const std::string_view rest : {": ", " is missing", " is null"})
    if (starts_with(message.substr(end), rest)) return std::string(message.substr(0, end));
  return {};
}

HttpError refused(int status, std::string code, const Error& error) {
  std::string_view message = error.message;
  if (starts_with(message, kRequestName)) message.remove_prefix(kRequestName.size());
  if (starts_with(message, ": ")) message.remove_prefix(2);
  return {status, std::move(code), std::string(message), param_of(message)};
}

}  // namespace

HttpError request_error(const Error& error) {
  switch (error.code) {
    case Code::kInvalidArgument: return refused(400, "invalid_value", error);
    case Code::kUnsupported: {
      HttpError result = refused(400, "unsupported_parameter", error);
      if (starts_with(result.param, "messages")) result.code = "unsupported_content";
      return result;
    }
    case Code::kCorrupt: {
      HttpError result = refused(400, "invalid_json", error);
      result.param.clear();
      return result;
    }
    case Code::kNotFound: return refused(404, "model_not_found", error);
    case Code::kExhausted: return {429, "queue_full", error.message, ""};
    case Code::kDeviceLost: break;
  }
  return run_error(error);
}

HttpError run_error(const Error& error) {
  switch (error.code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kExhausted: return request_error(error);
    case Code::kDeviceLost:
      return {503, "device_lost", "the device that computes the model has failed; try again later", ""};
    case Code::kNotFound:
    case Code::kCorrupt: break;
  }
  return {500, "internal", "the model's computation failed for this request", ""};
}

}  // namespace ddtree
