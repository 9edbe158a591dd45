#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ddtree {
namespace {

template <class T>
std::string written(const T& value) {
  JsonWriter out;
  out.value(value);
  return std::move(out).text();
}

TEST(JsonWriter, PutsCommasAndColonsWhereTheyBelong) {
  JsonWriter out;
  out.begin_object().member("a", 1).key("b").begin_array().value("x").value(true).null().begin_object().end_object();
  out.begin_array().end_array().end_array().member("c", 2.5).end_object();
  EXPECT_EQ(std::move(out).text(), R"({"a":1,"b":["x",true,null,{},[]],"c":2.5})");
}

TEST(JsonWriter, Indents) {
  JsonWriter out(2);
  out.begin_object()
      .member("a", 1)
      .key("b")
      .begin_array()
      .value(1)
      .value(2)
      .end_array()
      .key("e")
      .begin_array()
      .end_array();
  out.end_object();
  EXPECT_EQ(std::move(out).text(), "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    2\n  ],\n  \"e\": []\n}");
}

TEST(JsonWriter, EscapesWhatMustBe) {
  EXPECT_EQ(written("q\"b\\n\nr\rt\tz\x01\x1f\x7f"), "\"q\\\"b\\\\n\\nr\\rt\\tz\\u0001\\u001f\\u007f\"");
  EXPECT_EQ(written(std::string("a\0b", 3)), "\"a\\u0000b\"");
  EXPECT_EQ(written("é漢😀"), "\"é漢😀\"");
}

// The expected texts are Python's bytes.decode("utf-8", "replace").
TEST(JsonWriter, ReplacesInvalidUtf8) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(written("a\x80z"), "\"a" + r + "z\"");
  EXPECT_EQ(written("\x80\n\xff"), "\"" + r + "\\n" + r + "\"");
  EXPECT_EQ(written("\xE0\x80\xAF"), "\"" + r + r + r + "\"");          // overlong
  EXPECT_EQ(written("\xF0\x9F\x98\""), "\"" + r + "\\\"\"");            // cut off
  EXPECT_EQ(written("\xE6\xBC\xA2\xE6"), "\"\xE6\xBC\xA2" + r + "\"");  // cut off at the end
}

TEST(JsonWriter, NumbersAreShortestAndFinite) {
  EXPECT_EQ(written(0.1), "0.1");
  EXPECT_EQ(written(0.1f), "0.1");
  EXPECT_EQ(written(1e300), "1e+300");
  EXPECT_EQ(written(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(written(std::nan("")), "null");
  EXPECT_EQ(written(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(written(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(written(int8_t{-5}), "-5");
}

}  // namespace
}  // namespace ddtree
