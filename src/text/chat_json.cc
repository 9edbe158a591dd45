#include "text/chat_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/check.h"

namespace ddtree {
namespace {

void append_string(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; continue;
      case '\\': out += "\\\\"; continue;
      case '\n': out += "\\n"; continue;
      case '\r': out += "\\r"; continue;
      case '\t': out += "\\t"; continue;
      case '\b': out += "\\b"; continue;
      case '\f': out += "\\f"; continue;
      default: break;
    }
    if (static_cast<uint8_t>(c) >= 0x20) {
      out += c;
      continue;
    }
    out += "\\u00";
    out += kHex[static_cast<uint8_t>(c) >> 4];
    out += kHex[c & 15];
  }
  out += '"';
}

// The shortest digits that read back as the same double; an exponent where it is below -4 or from 16 on.
std::string python_double(double value) {
  char buffer[40];
  const auto [end, ec] = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  CHECK(ec == std::errc());
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) return std::string(text);  // "1e+16", "1.5e-05", as Python has it

  const bool negative = text[0] == '-';
  std::string digits(1, text[negative]);
  if (text[negative + 1] == '.') digits += text.substr(negative + 2, e - negative - 2);
  if (exponent < 0) digits.insert(0, static_cast<size_t>(-exponent), '0');
  const size_t point = static_cast<size_t>(std::max(exponent, 0)) + 1;
  if (digits.size() <= point) digits.append(point + 1 - digits.size(), '0');
  digits.insert(point, 1, '.');
  return (negative ? "-" : "") + digits;
}

}  // namespace

std::string python_number(JsonValue number) {
  if (number.is_integer()) return number.text();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double value = *number.as_double(-kInfinity, kInfinity);
  return std::isfinite(value) ? python_double(value) : value > 0 ? "Infinity" : "-Infinity";
}

std::vector<JsonMember> sorted_members(JsonValue object) {
  std::vector<JsonMember> members;
  for (const JsonMember member : members_of(object)) members.push_back(member);
  std::sort(members.begin(), members.end(), [](const JsonMember& a, const JsonMember& b) { return a.key < b.key; });
  return members;
}

// Recursive: the parser bounds the depth.
void append_tojson(JsonValue value, const TojsonStyle& style, std::string& out) {
  std::string_view separator;
  if (value.is_object()) {
    out += '{';
    const auto member = [&](const JsonMember& m) {
      out += separator;
      separator = style.comma;
      append_string(m.key, out);
      out += style.colon;
      append_tojson(m.value, style, out);
    };
    if (style.sort_keys) {
      for (const JsonMember& m : sorted_members(value)) member(m);
    } else {
      for (const JsonMember m : members_of(value)) member(m);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (const JsonValue element : elements_of(value)) {
      out += separator;
      separator = style.comma;
      append_tojson(element, style, out);
    }
    out += ']';
  } else if (value.is_string()) {
    append_string(*value.as_string(), out);
  } else if (value.is_number()) {
    out += python_number(value);
  } else {
    out += value.text();  // null, true, false
  }
}

std::string tojson(JsonValue value, const TojsonStyle& style) {
  std::string out;
  append_tojson(value, style, out);
  return out;
}

}  // namespace ddtree
