// JSON from outside: parse_json checks size, depth, UTF-8 and duplicate keys once; JsonValue reads with typed getters
// whose errors name the document, the field's path, the value and the limit ("config.json: text_config.vocab_size: …").
// Numbers keep every digit: integers are exact in int64 and uint64, others are correctly rounded doubles.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddtree {

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;  // at most 1 GiB
  int max_depth = 64;
};

struct JsonTape;  // the parsed document, flat
class JsonMembers;
class JsonElements;

// A value inside a JsonDocument, which must outlive it; views of strings too. Cheap to copy.
//
// as_*  reads this value. get_* reads a member that must be there and not be null. find_* yields nullopt where the
// member is absent or null (find() tells the two apart). All of them refuse a wrong type or a value outside [min, max].
class JsonValue {
 public:
  bool is_null() const;
  bool is_bool() const;
  bool is_number() const;
  bool is_integer() const;  // written without fraction and exponent, and inside int64 or uint64
  bool is_string() const;
  bool is_array() const;
  bool is_object() const;

  Result<bool> as_bool() const;
  Result<int64_t> as_int(int64_t min = kMinInt, int64_t max = kMaxInt) const;  // 4096.0 is not an integer
  Result<double> as_double(double min = -kMaxDouble, double max = kMaxDouble) const;
  Result<std::string_view> as_string() const;
  Result<JsonMembers> members() const;    // of an object, in the order of the file
  Result<JsonElements> elements() const;  // of an array

  std::optional<JsonValue> find(std::string_view key) const;  // nullopt where absent, or where this is no object
  Result<JsonValue> get(std::string_view key) const;          // present and not null
  Result<bool> get_bool(std::string_view key) const;
  Result<int64_t> get_int(std::string_view key, int64_t min = kMinInt, int64_t max = kMaxInt) const;
  Result<double> get_double(std::string_view key, double min = -kMaxDouble, double max = kMaxDouble) const;
  Result<std::string_view> get_string(std::string_view key) const;
  Result<std::optional<bool>> find_bool(std::string_view key) const;
  Result<std::optional<int64_t>> find_int(std::string_view key, int64_t min = kMinInt, int64_t max = kMaxInt) const;
  Result<std::optional<double>> find_double(std::string_view key, double min = -kMaxDouble,
                                            double max = kMaxDouble) const;
  Result<std::optional<std::string_view>> find_string(std::string_view key) const;

  std::string path() const;      // "text_config.eos_token_id[1]", "" for the root
  std::string location() const;  // "config.json: text_config.eos_token_id[1]", for messages
  std::string text() const;      // the value as JSON, shortened where long, for messages

  // An error about this value: "<location>: <what>".
  Error error(Code code, std::string_view what) const;

 private:
  friend class JsonDocument;
  friend class JsonMembers;
  friend class JsonElements;
  static constexpr int64_t kMinInt = std::numeric_limits<int64_t>::min();
  static constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
  static constexpr double kMaxDouble = std::numeric_limits<double>::max();

  JsonValue(const JsonTape* tape, uint32_t node) : tape_(tape), node_(node) {}
  Error wrong_type(std::string_view expected) const;

  const JsonTape* tape_;
  uint32_t node_;
};

struct JsonMember {
  std::string_view key;
  JsonValue value;
};

// for (auto [key, value] : members)
class JsonMembers {
 public:
  class Iterator {
   public:
    JsonMember operator*() const;
    Iterator& operator++();
    bool operator==(const Iterator& other) const { return node_ == other.node_; }

   private:
    friend class JsonMembers;
    Iterator(const JsonTape* tape, uint32_t node) : tape_(tape), node_(node) {}
    const JsonTape* tape_;
    uint32_t node_;
  };
  Iterator begin() const;
  Iterator end() const;
  size_t size() const;

 private:
  friend class JsonValue;
  explicit JsonMembers(JsonValue object) : object_(object) {}
  JsonValue object_;
};

// for (JsonValue element : elements)
class JsonElements {
 public:
  class Iterator {
   public:
    JsonValue operator*() const { return JsonValue(tape_, node_); }
    Iterator& operator++();
    bool operator==(const Iterator& other) const { return node_ == other.node_; }

   private:
    friend class JsonElements;
    Iterator(const JsonTape* tape, uint32_t node) : tape_(tape), node_(node) {}
    const JsonTape* tape_;
    uint32_t node_;
  };
  Iterator begin() const;
  Iterator end() const;
  size_t size() const;

 private:
  friend class JsonValue;
  explicit JsonElements(JsonValue array) : array_(array) {}
  JsonValue array_;
};

class JsonDocument {
 public:
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonValue root() const { return JsonValue(tape_.get(), 0); }

 private:
  friend Result<JsonDocument> parse_json(std::string_view text, std::string_view name, JsonLimits limits);
  explicit JsonDocument(std::unique_ptr<JsonTape> tape);
  std::unique_ptr<JsonTape> tape_;
};

// `name` (a file name, "request", …) begins every message about the document. Copies what it needs of `text`.
Result<JsonDocument> parse_json(std::string_view text, std::string_view name, JsonLimits limits = {});

}  // namespace ddtree
