#include "base/json_writer.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace ddtree {
namespace {

void append_escaped(std::string* out, char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"': *out += "\\\""; return;
    case '\\': *out += "\\\\"; return;
    case '\n': *out += "\\n"; return;
    case '\r': *out += "\\r"; return;
    case '\t': *out += "\\t"; return;
    default: break;
  }
  if (static_cast<uint8_t>(c) >= 0x20 && c != 0x7F) {
    *out += c;
    return;
  }
  *out += "\\u00";
  *out += kHex[static_cast<uint8_t>(c) >> 4];
  *out += kHex[c & 15];
}

template <class Float>
std::string shortest(Float number) {
  if (!std::isfinite(number)) return "null";
  char buffer[40];
  const auto [end, ec] = std::to_chars(buffer, buffer + sizeof(buffer), number);
  CHECK(ec == std::errc());
  return std::string(buffer, end);
}

}  // namespace

JsonWriter& JsonWriter::key(std::string_view name) {
  CHECK(!after_key_);
  value(name);
  out_ += indent_ ? ": " : ":";
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view s) {
  separate();
  out_ += '"';
  while (!s.empty()) {
    const Utf8Char c = read_utf8(s);
    if (c.code_point < 0)
      out_ += kReplacementCharacter;
    else if (c.length == 1)
      append_escaped(&out_, s[0]);
    else
      out_ += s.substr(0, c.length);
    s.remove_prefix(c.length);
  }
  out_ += '"';
  return *this;
}

JsonWriter& JsonWriter::value(double number) { return raw(shortest(number)); }
JsonWriter& JsonWriter::value(float number) { return raw(shortest(number)); }

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  return *this;
}

std::string JsonWriter::text() && {
  CHECK(has_items_.empty() && !after_key_);
  return std::move(out_);
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  has_items_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  CHECK(!has_items_.empty() && !after_key_);
  const bool had_items = has_items_.back();
  has_items_.pop_back();
  if (had_items) new_line();
  out_ += bracket;
  return *this;
}

void JsonWriter::separate() {
  if (after_key_ || has_items_.empty()) {
    after_key_ = false;
    return;
  }
  if (has_items_.back()) out_ += ',';
  has_items_.back() = true;
  new_line();
}

void JsonWriter::new_line() {
  if (indent_ == 0) return;
  out_ += '\n';
  out_.append(has_items_.size() * static_cast<size_t>(indent_), ' ');
}

}  // namespace ddtree
