#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include <boost/json/basic_parser_impl.hpp>

#include "base/json_writer.h"

namespace ddtree {

namespace {

enum class Kind : uint8_t { kNull, kBool, kInt, kUint, kDouble, kString, kArray, kObject };

struct Node {
  Kind kind;
  uint32_t count;  // elements, members, or bytes of a string
  uint32_t end;    // the node after this value's last descendant
  union {
    bool boolean;
    int64_t integer;
    uint64_t natural;  // above INT64_MAX
    double real;
    size_t offset;  // of a string in JsonTape::chars
  };
};

}  // namespace

// All values in the order of the text. An object is followed by its members, each a string node (the key) and a value.
struct JsonTape {
  std::string name;
  std::vector<Node> nodes;
  std::string chars;

  std::string_view string(uint32_t node) const {
    return std::string_view(chars).substr(nodes[node].offset, nodes[node].count);
  }
};

namespace {

namespace json = boost::json;

// Appends the parser's events to a tape.
class TapeBuilder {
 public:
  static constexpr size_t max_array_size = size_t(-1);
  static constexpr size_t max_object_size = size_t(-1);
  static constexpr size_t max_string_size = size_t(-1);
  static constexpr size_t max_key_size = size_t(-1);

  explicit TapeBuilder(JsonTape* tape) : tape_(*tape) {}

  const std::optional<std::string>& duplicate() const { return duplicate_; }

  bool on_document_begin(json::error_code&) { return true; }
  bool on_document_end(json::error_code&) { return true; }
  bool on_array_begin(json::error_code&) { return open(Kind::kArray); }
  bool on_array_end(size_t n, json::error_code&) { return close(n); }
  bool on_object_begin(json::error_code&) { return open(Kind::kObject); }
  bool on_object_end(size_t n, json::error_code& ec) {
    const uint32_t object = open_.back();
    close(n);
    if (keys_are_unique(object)) return true;
    ec = json::make_error_code(json::error::syntax);
    return false;
  }
  bool on_string_part(json::string_view s, size_t, json::error_code&) { return append(s); }
  bool on_string(json::string_view s, size_t n, json::error_code&) { return string(s, n); }
  bool on_key_part(json::string_view s, size_t, json::error_code&) { return append(s); }
  bool on_key(json::string_view s, size_t n, json::error_code&) { return string(s, n); }
  bool on_number_part(json::string_view s, json::error_code&) {
    number_.append(s.data(), s.size());
    return true;
  }
  bool on_int64(int64_t value, json::string_view, json::error_code&) {
    number_.clear();
    push(Kind::kInt).integer = value;
    return true;
  }
  bool on_uint64(uint64_t value, json::string_view, json::error_code&) {
    number_.clear();
    push(Kind::kUint).natural = value;
    return true;
  }
  // The parser's own double is off by an ulp or two; its text is read again.
  bool on_double(double approximation, json::string_view s, json::error_code&) {
    number_.append(s.data(), s.size());
    double value = approximation;
    const auto [end, ec] = std::from_chars(number_.data(), number_.data() + number_.size(), value);
    if (ec != std::errc()) value = approximation;  // out of range: ±infinity or ±0
    number_.clear();
    push(Kind::kDouble).real = value;
    return true;
  }
  bool on_bool(bool value, json::error_code&) {
    push(Kind::kBool).boolean = value;
    return true;
  }
  bool on_null(json::error_code&) {
    push(Kind::kNull);
    return true;
  }
  bool on_comment_part(json::string_view, json::error_code&) { return true; }
  bool on_comment(json::string_view, json::error_code&) { return true; }

 private:
  Node& push(Kind kind) {
    Node& node = tape_.nodes.emplace_back();
    node.kind = kind;
    node.count = 0;
    node.end = static_cast<uint32_t>(tape_.nodes.size());
    return node;
  }
  bool open(Kind kind) {
    open_.push_back(static_cast<uint32_t>(tape_.nodes.size()));
    push(kind);
    return true;
  }
  bool close(size_t count) {
    Node& node = tape_.nodes[open_.back()];
    node.count = static_cast<uint32_t>(count);
    node.end = static_cast<uint32_t>(tape_.nodes.size());
    open_.pop_back();
    return true;
  }
  bool append(json::string_view s) {
    tape_.chars.append(s.data(), s.size());
    return true;
  }
  bool string(json::string_view s, size_t total) {
    append(s);
    Node& node = push(Kind::kString);
    node.count = static_cast<uint32_t>(total);
    node.offset = tape_.chars.size() - total;
    return true;
  }

  // Sorted by hash, so that no choice of keys makes it slower than n log n.
  bool keys_are_unique(uint32_t object) {
    keys_.clear();
    for (uint32_t key = object + 1; key < tape_.nodes[object].end; key = tape_.nodes[key + 1].end)
      keys_.emplace_back(std::hash<std::string_view>()(tape_.string(key)), tape_.string(key));
    std::sort(keys_.begin(), keys_.end());
    const auto twin = std::adjacent_find(keys_.begin(), keys_.end());
    if (twin == keys_.end()) return true;
    duplicate_ = twin->second;
    return false;
  }

  JsonTape& tape_;
  std::vector<uint32_t> open_;  // containers not yet closed
  std::vector<std::pair<size_t, std::string_view>> keys_;
  std::string number_;
  std::optional<std::string> duplicate_;
};

std::string shortened(std::string_view s) {
  constexpr size_t kMax = 60;
  JsonWriter writer;
  writer.value(s.substr(0, kMax));
  return std::move(writer).text() + (s.size() > kMax ? "…" : "");
}

std::string number_text(double value) {
  JsonWriter writer;
  writer.value(value);
  return std::isfinite(value) ? std::move(writer).text() : std::string("a number too large for a double");
}

}  // namespace

JsonDocument::JsonDocument(std::unique_ptr<JsonTape> tape) : tape_(std::move(tape)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

Result<JsonDocument> parse_json(std::string_view text, std::string_view name, JsonLimits limits) {
  CHECK_LE(limits.max_bytes, size_t{1} << 30);  // node numbers are 32 bits
  const std::string where(name);
  if (text.size() > limits.max_bytes)
    return Error{Code::kExhausted, where + ": JSON of " + std::to_string(text.size()) + " bytes, at most " +
                                       std::to_string(limits.max_bytes) + " are accepted"};
  auto tape = std::make_unique<JsonTape>();
  tape->name = where;
  json::parse_options options;
  options.max_depth = static_cast<size_t>(limits.max_depth);
  json::basic_parser<TapeBuilder> parser(options, tape.get());
  json::error_code ec;
  const size_t read = parser.write_some(false, text.data(), text.size(), ec);
  if (parser.handler().duplicate())
    return Error{Code::kCorrupt,
                 where + ": key " + shortened(*parser.handler().duplicate()) + " appears twice in one object"};
  if (ec == json::error::too_deep)
    return Error{Code::kCorrupt, where + ": JSON nested deeper than " + std::to_string(limits.max_depth) + " levels"};
  if (!ec && read < text.size()) ec = json::make_error_code(json::error::extra_data);
  if (ec)
    return Error{Code::kCorrupt, where + ": not valid JSON at byte " + std::to_string(read) + ", near " +
                                     shortened(text.substr(std::min(read, text.size()), 20)) + ": " + ec.message()};
  return JsonDocument(std::move(tape));
}

bool JsonValue::is_null() const { return tape_->nodes[node_].kind == Kind::kNull; }
bool JsonValue::is_bool() const { return tape_->nodes[node_].kind == Kind::kBool; }
bool JsonValue::is_number() const { return is_integer() || tape_->nodes[node_].kind == Kind::kDouble; }
bool JsonValue::is_integer() const {
  return tape_->nodes[node_].kind == Kind::kInt || tape_->nodes[node_].kind == Kind::kUint;
}
bool JsonValue::is_string() const { return tape_->nodes[node_].kind == Kind::kString; }
bool JsonValue::is_array() const { return tape_->nodes[node_].kind == Kind::kArray; }
bool JsonValue::is_object() const { return tape_->nodes[node_].kind == Kind::kObject; }

Result<bool> JsonValue::as_bool() const {
  if (!is_bool()) return wrong_type("true or false");
  return tape_->nodes[node_].boolean;
}

Result<int64_t> JsonValue::as_int(int64_t min, int64_t max) const {
  const Node& node = tape_->nodes[node_];
  if (node.kind != Kind::kInt && node.kind != Kind::kUint) return wrong_type("an integer");
  if (node.kind == Kind::kInt && node.integer >= min && node.integer <= max) return node.integer;
  return error(Code::kInvalidArgument,
               "is " + text() + ", must be an integer from " + std::to_string(min) + " to " + std::to_string(max));
}

Result<double> JsonValue::as_double(double min, double max) const {
  const Node& node = tape_->nodes[node_];
  if (!is_number()) return wrong_type("a number");
  const double value = node.kind == Kind::kInt    ? static_cast<double>(node.integer)
                       : node.kind == Kind::kUint ? static_cast<double>(node.natural)
                                                  : node.real;
  if (value >= min && value <= max) return value;
  return error(Code::kInvalidArgument,
               "is " + text() + ", must be a number from " + number_text(min) + " to " + number_text(max));
}

Result<std::string_view> JsonValue::as_string() const {
  if (!is_string()) return wrong_type("a string");
  return tape_->string(node_);
}

Result<JsonMembers> JsonValue::members() const {
  if (!is_object()) return wrong_type("an object");
  return JsonMembers(*this);
}

Result<JsonElements> JsonValue::elements() const {
  if (!is_array()) return wrong_type("an array");
  return JsonElements(*this);
}

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  if (!is_object()) return std::nullopt;
  for (auto [name, value] : JsonMembers(*this))
    if (name == key) return value;
  return std::nullopt;
}

Result<JsonValue> JsonValue::get(std::string_view key) const {
  if (!is_object()) return wrong_type("an object");
  const std::optional<JsonValue> value = find(key);
  if (value && !value->is_null()) return *value;
  const std::string prefix = path();
  return Error{Code::kInvalidArgument, tape_->name + ": " + prefix + (prefix.empty() ? "" : ".") + std::string(key) +
                                           (value ? " is null" : " is missing")};
}

Result<bool> JsonValue::get_bool(std::string_view key) const {
  TRY_ASSIGN(const JsonValue value, get(key));
  return value.as_bool();
}

Result<int64_t> JsonValue::get_int(std::string_view key, int64_t min, int64_t max) const {
  TRY_ASSIGN(const JsonValue value, get(key));
  return value.as_int(min, max);
}

Result<double> JsonValue::get_double(std::string_view key, double min, double max) const {
  TRY_ASSIGN(const JsonValue value, get(key));
  return value.as_double(min, max);
}

Result<std::string_view> JsonValue::get_string(std::string_view key) const {
  TRY_ASSIGN(const JsonValue value, get(key));
  return value.as_string();
}

namespace {

// nullopt for an absent or null member, else what `read` makes of it.
template <class T, class Read>
Result<std::optional<T>> find_as(const JsonValue& object, std::string_view key, Read read) {
  const std::optional<JsonValue> value = object.find(key);
  if (!value || value->is_null()) return std::optional<T>();
  TRY_ASSIGN(T result, read(*value));
  return std::optional<T>(result);
}

}  // namespace

Result<std::optional<bool>> JsonValue::find_bool(std::string_view key) const {
  return find_as<bool>(*this, key, [](JsonValue v) { return v.as_bool(); });
}

Result<std::optional<int64_t>> JsonValue::find_int(std::string_view key, int64_t min, int64_t max) const {
  return find_as<int64_t>(*this, key, [&](JsonValue v) { return v.as_int(min, max); });
}

Result<std::optional<double>> JsonValue::find_double(std::string_view key, double min, double max) const {
  return find_as<double>(*this, key, [&](JsonValue v) { return v.as_double(min, max); });
}

Result<std::optional<std::string_view>> JsonValue::find_string(std::string_view key) const {
  return find_as<std::string_view>(*this, key, [](JsonValue v) { return v.as_string(); });
}

// Found by descending from the root, since only errors ask for it.
std::string JsonValue::path() const {
  const std::vector<Node>& nodes = tape_->nodes;
  std::string out;
  for (uint32_t at = 0; at != node_;) {
    const bool object = nodes[at].kind == Kind::kObject;
    size_t index = 0;
    at += 1 + object;  // the first child, past its key
    for (; nodes[at].end <= node_; ++index) at = nodes[at].end + object;
    if (!object) {
      out += "[" + std::to_string(index) + "]";
    } else {
      if (!out.empty()) out += '.';
      out += tape_->string(at - 1);
    }
  }
  return out;
}

std::string JsonValue::location() const {
  const std::string where = path();
  return where.empty() ? tape_->name : tape_->name + ": " + where;
}

std::string JsonValue::text() const {
  const Node& node = tape_->nodes[node_];
  switch (node.kind) {
    case Kind::kNull: return "null";
    case Kind::kBool: return node.boolean ? "true" : "false";
    case Kind::kInt: return std::to_string(node.integer);
    case Kind::kUint: return std::to_string(node.natural);
    case Kind::kDouble: return number_text(node.real);
    case Kind::kString: return shortened(tape_->string(node_));
    case Kind::kArray: return "an array of " + std::to_string(node.count);
    case Kind::kObject: return "an object of " + std::to_string(node.count);
  }
  return "";
}

Error JsonValue::error(Code code, std::string_view what) const {
  return Error{code, location() + ": " + std::string(what)};
}

Error JsonValue::wrong_type(std::string_view expected) const {
  return error(Code::kInvalidArgument, "is " + text() + ", must be " + std::string(expected));
}

JsonMember JsonMembers::Iterator::operator*() const { return {tape_->string(node_), JsonValue(tape_, node_ + 1)}; }

JsonMembers::Iterator& JsonMembers::Iterator::operator++() {
  node_ = tape_->nodes[node_ + 1].end;
  return *this;
}

JsonMembers::Iterator JsonMembers::begin() const { return {object_.tape_, object_.node_ + 1}; }
JsonMembers::Iterator JsonMembers::end() const { return {object_.tape_, object_.tape_->nodes[object_.node_].end}; }
size_t JsonMembers::size() const { return object_.tape_->nodes[object_.node_].count; }

JsonElements::Iterator& JsonElements::Iterator::operator++() {
  node_ = tape_->nodes[node_].end;
  return *this;
}

JsonElements::Iterator JsonElements::begin() const { return {array_.tape_, array_.node_ + 1}; }
JsonElements::Iterator JsonElements::end() const { return {array_.tape_, array_.tape_->nodes[array_.node_].end}; }
size_t JsonElements::size() const { return array_.tape_->nodes[array_.node_].count; }

}  // namespace ddtree
