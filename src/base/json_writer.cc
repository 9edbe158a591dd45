#include "base/json_writer.h"

#include <charconv>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace ddtree {
namespace {

// Bytes of the well-formed UTF-8 character that `s` starts with, 0 if it starts with none (Unicode, table 3-7).
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<uint8_t>(s[i]) : uint8_t{0}; };
  const auto continues = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i)
      if ((byte(i) & 0xC0) != 0x80) return false;
    return true;
  };
  const uint8_t lead = byte(0);
  const uint8_t second = byte(1);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1, 2) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F)) return 0;
    return continues(1, 3) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    if ((lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) return 0;
    return continues(1, 4) ? 4 : 0;
  }
  return 0;
}

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

std::string replace_invalid_utf8(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  while (!s.empty()) {
    const size_t n = utf8_length(s);
    out += n ? s.substr(0, n) : "\xEF\xBF\xBD";
    s.remove_prefix(n ? n : 1);
  }
  return out;
}

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
    const size_t n = utf8_length(s);
    if (n == 1)
      append_escaped(&out_, s[0]);
    else
      out_ += n ? s.substr(0, n) : "\xEF\xBF\xBD";
    s.remove_prefix(n ? n : 1);
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
