// Result<T>: a value or an Error. Everything reachable from bytes we did not write (files, flags, requests) returns
// one. Status is Result<void>. TRY and TRY_ASSIGN hand an error to the caller.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace ddtree {

enum class Code : uint8_t {
  kInvalidArgument,  // a flag, field or request the caller can mend
  kNotFound,         // a file, tensor or name that is not there
  kCorrupt,          // a file that contradicts itself or its format
  kUnsupported,      // valid, but not something this build does
  kExhausted,        // out of memory, pages or queue room: try again later or ask for less
  kDeviceLost,       // the device failed; the process must be restarted
};

struct Error {
  Code code;
  std::string message;  // names the file or field, the value, the limit, and what to do
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const {
    CHECK(!ok());
    return std::get<1>(state_);
  }

 private:
  T& value() {
    check_ok();
    return std::get<0>(state_);
  }
  const T& value() const {
    check_ok();
    return std::get<0>(state_);
  }
  void check_ok() const {
    if (!ok()) check_failed(__FILE__, __LINE__, "result.ok()", std::get<1>(state_).message);
  }

  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CHECK(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace ddtree

#define DDTREE_CONCAT_INNER(a, b) a##b
#define DDTREE_CONCAT(a, b) DDTREE_CONCAT_INNER(a, b)

// Returns the error of `expression` from the enclosing function, if it has one.
#define TRY(expression)                                               \
  do {                                                                \
    auto&& try_status = (expression);                                 \
    if (!try_status.ok()) return ::ddtree::Error(try_status.error()); \
  } while (false)

// TRY_ASSIGN(auto x, f()): declares or assigns x from a Result, or returns its error.
#define TRY_ASSIGN(target, expression) TRY_ASSIGN_INNER(DDTREE_CONCAT(try_result_, __LINE__), target, expression)
#define TRY_ASSIGN_INNER(name, target, expression)      \
  auto name = (expression);                             \
  if (!name.ok()) return ::ddtree::Error(name.error()); \
  target = *std::move(name)
