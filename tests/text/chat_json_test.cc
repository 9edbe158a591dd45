// The expected texts are those of Python's json.dumps(json.loads(…), ensure_ascii=False).
#include "text/chat_json.h"

#include <gtest/gtest.h>

namespace ddtree {
namespace {

TEST(Tojson, NumbersAsPythonPrintsThem) {
  const JsonDocument document = *parse_json(
      "[1, -7, 18446744073709551615, 1.0, -0.0, 0.1, 100.0, 1e3, 1e15, 1e16, 123456789012345678.0, 1.5e300, 5e-324, "
      "0.0001, 0.00001, 1.25e-7, 12345.678, -2.5e-3, 9007199254740993.0, 1e999, -1e999]",
      "test");
  EXPECT_EQ(tojson(document.root()),
            "[1, -7, 18446744073709551615, 1.0, -0.0, 0.1, 100.0, 1000.0, 1000000000000000.0, 1e+16, "
            "1.2345678901234568e+17, 1.5e+300, 5e-324, 0.0001, 1e-05, 1.25e-07, 12345.678, -0.0025, "
            "9007199254740992.0, Infinity, -Infinity]");
}

TEST(Tojson, StringsKeysAndSeparators) {
  const std::string escapes = "\"\\u0000\\u001f\\b\\f\\n\\r\\t\\\"\\\\/\x7f\u2028é🎉\"";
  const JsonDocument document =
      *parse_json(R"({"b": {"z": 1, "a": [], "é": {}}, "a": "\u0000\u001f\b\f\n\r\t\"\\/\u007f\u2028é\ud83c\udf89",)"
                  R"( "A": [null, true, false, [{"y": 2, "x": 1}]]})",
                  "test");
  EXPECT_EQ(tojson(document.root()), R"({"b": {"z": 1, "a": [], "é": {}}, "a": )" + escapes +
                                         R"(, "A": [null, true, false, [{"y": 2, "x": 1}]]})");
  EXPECT_EQ(tojson(document.root(), kCompactSorted),
            R"({"A":[null,true,false,[{"x":1,"y":2}]],"a":)" + escapes + R"(,"b":{"a":[],"z":1,"é":{}}})");
}

}  // namespace
}  // namespace ddtree
