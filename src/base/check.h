// CHECK*: our own bugs only. They print the values and the place, then abort. Input from outside never reaches one.
#pragma once

#include <sstream>
#include <string>

namespace ddtree {

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const std::string& detail);

template <class A, class B>
std::string check_detail(const A& a, const B& b) {
  std::ostringstream out;
  out << a << " vs " << b;
  return out.str();
}

}  // namespace ddtree

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) ::ddtree::check_failed(__FILE__, __LINE__, #condition, ""); \
  } while (false)

#define DDTREE_CHECK_OP(a, op, b)                                                                              \
  do {                                                                                                         \
    const auto& check_a = (a);                                                                                 \
    const auto& check_b = (b);                                                                                 \
    if (!(check_a op check_b))                                                                                 \
      ::ddtree::check_failed(__FILE__, __LINE__, #a " " #op " " #b, ::ddtree::check_detail(check_a, check_b)); \
  } while (false)

#define CHECK_EQ(a, b) DDTREE_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) DDTREE_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) DDTREE_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) DDTREE_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) DDTREE_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) DDTREE_CHECK_OP(a, >=, b)
