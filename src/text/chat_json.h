// JSON as the templates' `tojson` filter prints it, which is Python's json.dumps(value, ensure_ascii=False).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace ddtree {

struct TojsonStyle {
  std::string_view comma = ", ";
  std::string_view colon = ": ";
  bool sort_keys = false;  // by code point, at every level
};

inline constexpr TojsonStyle kCompactSorted{.comma = ",", .colon = ":", .sort_keys = true};

void append_tojson(JsonValue value, const TojsonStyle& style, std::string& out);
std::string tojson(JsonValue value, const TojsonStyle& style = {});

// Of an array or object that is known to be one. A range-for may go over what these return, but not over
// *value.elements(), whose Result is gone by then.
inline JsonElements elements_of(JsonValue array) { return *array.elements(); }
inline JsonMembers members_of(JsonValue object) { return *object.members(); }

// The members of an object by key, in code point order.
std::vector<JsonMember> sorted_members(JsonValue object);

// Python's repr() of a number: 1, 1.0, 1e+16. The value must be a number.
std::string python_number(JsonValue number);

}  // namespace ddtree
