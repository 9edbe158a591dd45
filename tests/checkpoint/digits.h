// Compares a double with a decimal constant to every digit that the constant is printed with.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <cstdio>
#include <string>

namespace ddtree::testing {

inline ::testing::AssertionResult has_digits(double value, const std::string& printed) {
  const std::string mantissa = printed.substr(0, printed.find('e'));
  int digits = 0;
  bool leading = true;
  for (const char c : mantissa) {
    leading = leading && (c == '0' || c == '.');
    digits += !leading && std::isdigit(static_cast<unsigned char>(c));
  }
  char ours[64];
  char theirs[64];
  std::snprintf(ours, sizeof(ours), "%.*e", digits - 1, value);
  std::snprintf(theirs, sizeof(theirs), "%.*e", digits - 1, std::stod(printed));
  if (std::string(ours) == theirs) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << ours << " instead of " << theirs;
}

}  // namespace ddtree::testing
