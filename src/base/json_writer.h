// JsonWriter: JSON text, written front to back. Any bytes may be given as strings: what is not UTF-8 becomes U+FFFD, as
// utf8.h has it.
//
//   JsonWriter out;
//   out.begin_object().key("ids").begin_array().value(1).value(2).end_array().end_object();
//   std::move(out).text() == R"({"ids":[1,2]})"
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddtree {

class JsonWriter {
 public:
  // indent > 0 puts every member and element on a line of its own.
  explicit JsonWriter(int indent = 0) : indent_(indent) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view s);
  JsonWriter& value(const char* s) { return value(std::string_view(s)); }
  JsonWriter& value(bool b) { return raw(b ? "true" : "false"); }
  JsonWriter& value(double number);  // the shortest text that reads back as the same double; null unless finite
  JsonWriter& value(float number);
  JsonWriter& value(std::signed_integral auto number) { return raw(std::to_string(static_cast<int64_t>(number))); }
  JsonWriter& value(std::unsigned_integral auto number) { return raw(std::to_string(static_cast<uint64_t>(number))); }
  JsonWriter& null() { return raw("null"); }
  JsonWriter& raw(std::string_view json);  // a value that is JSON already

  template <class T>
  JsonWriter& member(std::string_view name, const T& v) {
    return key(name).value(v);
  }

  std::string text() &&;  // everything opened must be closed

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();  // what stands before a value or key: comma, line break
  void new_line();

  std::string out_;
  std::vector<bool> has_items_;  // per open container
  bool after_key_ = false;
  int indent_;
};

}  // namespace ddtree
