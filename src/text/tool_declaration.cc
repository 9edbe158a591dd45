#include "text/tool_declaration.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "text/chat_json.h"

namespace ddtree {
namespace {

constexpr std::string_view kStep = "  ";
constexpr std::string_view kDefs = "#/$defs/";

// What Python takes for false.
bool is_falsy(JsonValue value) {
  if (value.is_bool()) return !*value.as_bool();
  if (value.is_string()) return value.as_string()->empty();
  if (value.is_array()) return value.elements()->size() == 0;
  if (value.is_object()) return value.members()->size() == 0;
  return value.is_null() || (value.is_number() && *value.as_double() == 0);
}

bool is_scalar(JsonValue value) { return !value.is_array() && !value.is_object(); }

// Python's str() of a scalar.
std::string python_text(JsonValue value) {
  if (value.is_string()) return std::string(*value.as_string());
  if (value.is_number()) return python_number(value);
  if (value.is_bool()) return *value.as_bool() ? "True" : "False";
  return "None";
}

std::string_view string_or_empty(std::optional<JsonValue> value) {
  return value && value->is_string() ? *value->as_string() : std::string_view();
}

std::string_view type_name(JsonValue schema) { return string_or_empty(schema.find("type")); }

// Of a type in a list of types; empty where it is not known.
std::string_view union_member(JsonValue type) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kNames = {{{"string", "string"},
                                                                                    {"number", "number"},
                                                                                    {"integer", "number"},
                                                                                    {"boolean", "boolean"},
                                                                                    {"null", "null"},
                                                                                    {"object", "{}"},
                                                                                    {"array", "Array<any>"}}};
  for (const auto& [name, written] : kNames)
    if (name == string_or_empty(type)) return written;
  return {};
}

// The one type that an enum's values may be said to have, beside null. nullopt: the list of types is not supported.
std::optional<std::string_view> enum_type(JsonValue schema) {
  const std::optional<JsonValue> type = schema.find("type");
  if (!type || !type->is_array()) return string_or_empty(type);
  std::vector<std::string_view> names;
  for (const JsonValue name : elements_of(*type)) names.push_back(string_or_empty(name));
  if (names.size() == 1) return names[0];
  if (names.size() != 2 || std::find(names.begin(), names.end(), "null") == names.end()) return std::nullopt;
  return names[0] == "null" ? names[1] : names[0];
}

bool has_type(JsonValue value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number() || value.is_bool();  // as Python counts them
  if (type == "integer") return value.is_integer() || value.is_bool();
  return type != "boolean" || value.is_bool();
}

// "// line" for each line; empty lines stay bare.
std::string comment(std::string_view text, std::string_view indent) {
  std::string out;
  while (true) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!line.empty()) out.append(indent).append("// ").append(line);
    if (line.size() == text.size()) return out;
    out += '\n';
    text.remove_prefix(line.size() + 1);
  }
}

template <class Range, class Write>
std::string join(const Range& range, std::string_view separator, Write write) {
  std::string out;
  bool first = true;
  for (const auto& item : range) {
    if (!std::exchange(first, false)) out += separator;
    out += write(item);
  }
  return out;
}

// One function: `read` takes its schema in, as a check that all of it can be written; then the parts are written. Both
// descend as deep as the JSON, whose depth the parser bounds. Members are visited by key.
class Function {
 public:
  bool read(JsonValue function) {
    parameters_ = function.find("parameters");
    if (parameters_ && is_falsy(*parameters_)) parameters_.reset();
    if (parameters_ && !read_object(*parameters_)) return false;
    self_reference_at_root_ = self_reference_;
    written_definitions_ = definitions_;  // not what the definitions themselves define
    for (const JsonMember& definition : written_definitions_)
      if (!definition.value.is_object() || !read_schema(definition.value)) return false;
    return true;
  }

  std::string write(const ChatTool& tool) const {
    std::vector<std::string> parts;
    if (self_reference_at_root_) parts.push_back("interface parameters {" + root_members() + "}");
    for (const JsonMember& definition : written_definitions_) {
      const std::string_view description = string_or_empty(definition.value.find("description"));
      parts.push_back((description.empty() ? "" : comment(description, "") + "\n") + "interface " +
                      std::string(definition.key) + " " + type(definition.value, ""));
    }
    const std::string_view description = string_or_empty(tool.definition.find("function")->find("description"));
    if (!description.empty()) parts.push_back(comment(description, ""));
    const std::string argument =
        self_reference_at_root_ ? "parameters" : (parameters_ ? object(*parameters_, "") : std::string("{}"));
    parts.push_back("type " + tool.name + " = (_: " + argument + ") => any;");
    return join(parts, "\n", [](const std::string& part) { return part; });
  }

 private:
  struct Property {
    std::string_view name;
    JsonValue schema;
    bool optional;
  };

  bool read_schema(JsonValue schema) {
    if (schema.is_bool()) return true;
    if (!schema.is_object()) return false;
    if (const auto description = schema.find("description"))
      if (!description->is_string() && !is_falsy(*description)) return false;
    if (const auto reference = schema.find("$ref")) return read_reference(*reference);
    if (const auto any_of = schema.find("anyOf")) return read_all(*any_of);
    if (const auto values = schema.find("enum")) return read_enum(schema, *values);
    const std::optional<JsonValue> type = schema.find("type");
    if (!type) return schema.members()->size() == 0;
    if (type->is_array()) return knows_all(*type->elements());
    if (!type->is_string()) return false;
    if (type_name(schema) == "object") return read_object(schema);
    for (const JsonMember& constraint : constraints(schema))
      if (!is_scalar(constraint.value)) return false;
    const std::optional<JsonValue> items = schema.find("items");
    return type_name(schema) != "array" || !items || is_falsy(*items) || read_schema(*items);
  }

  static bool knows_all(JsonElements types) {
    for (const JsonValue type : types)
      if (union_member(type).empty()) return false;
    return true;
  }

  bool read_all(JsonValue schemas) {
    if (!schemas.is_array()) return false;
    for (const JsonValue schema : elements_of(schemas))
      if (!read_schema(schema)) return false;
    return true;
  }

  bool read_reference(JsonValue reference) {
    const std::string_view path = string_or_empty(reference);
    if (path == "#") return self_reference_ = true;
    if (!path.starts_with(kDefs)) return false;
    const auto position = positions_.find(last_segment(path));
    return position != positions_.end() && definitions_[position->second].value.is_object();
  }

  bool read_enum(JsonValue schema, JsonValue values) {
    const std::optional<std::string_view> type = enum_type(schema);
    if (!type || !values.is_array()) return false;
    for (const JsonValue value : elements_of(values))
      if (!is_scalar(value) || (!value.is_null() && !has_type(value, *type))) return false;
    return true;
  }

  bool read_object(JsonValue schema) {
    if (const auto definitions = schema.find("$defs"); definitions && !is_falsy(*definitions)) {
      if (!definitions->is_object()) return false;
      for (const JsonMember& definition : sorted_members(*definitions)) define(definition);
    }
    if (const auto additional = schema.find("additionalProperties"); additional && !additional->is_null())
      if (!read_schema(*additional)) return false;
    const std::optional<JsonValue> properties = schema.find("properties");
    if (!properties) return true;
    const std::optional<JsonValue> required = schema.find("required");
    if (!properties->is_object() || (required && !required->is_array())) return false;
    for (const JsonMember& property : sorted_members(*properties))
      if (!read_schema(property.value)) return false;
    return true;
  }

  void define(const JsonMember& definition) {
    const auto [position, is_new] = positions_.try_emplace(definition.key, definitions_.size());
    if (is_new)
      definitions_.push_back(definition);
    else
      definitions_[position->second] = definition;
  }

  static std::string_view last_segment(std::string_view path) { return path.substr(path.rfind('/') + 1); }

  static std::vector<JsonMember> constraints(JsonValue schema) {
    if (!schema.is_object() || schema.find("$ref") || schema.find("anyOf") || schema.find("enum")) return {};
    const std::string_view type = type_name(schema);
    const auto counts = [&](std::string_view key) {
      if (type == "string") return key == "maxLength" || key == "minLength" || key == "pattern";
      if (type == "number" || type == "integer") return key == "maximum" || key == "minimum";
      return type == "array" && (key == "maxItems" || key == "minItems");
    };
    std::vector<JsonMember> found = sorted_members(schema);
    std::erase_if(found, [&](const JsonMember& member) { return !counts(member.key); });
    return found;
  }

  // The comment above a property: its description, then what its values may be.
  static std::string documentation(JsonValue schema, std::string_view indent) {
    std::string out;
    if (const std::string_view text = string_or_empty(schema.find("description")); !text.empty())
      out += comment(text, indent) + "\n";
    const std::vector<JsonMember> limits = constraints(schema);
    if (limits.empty()) return out;
    return out.append(indent) + "// " +
           join(limits, ", ",
                [](const JsonMember& limit) { return std::string(limit.key) + ": " + python_text(limit.value); }) +
           "\n";
  }

  std::string type(JsonValue schema, std::string_view indent) const {
    if (schema.is_bool()) return *schema.as_bool() ? "any" : "null";
    if (const auto reference = schema.find("$ref")) {
      const std::string_view path = *reference->as_string();
      return path == "#" ? "parameters" : std::string(last_segment(path));
    }
    if (const auto any_of = schema.find("anyOf"))
      return join(*any_of->elements(), " | ", [&](JsonValue s) { return type(s, indent); });
    if (const auto values = schema.find("enum"))
      return join(*values->elements(), " | ", [](JsonValue value) {
        return value.is_string() ? '"' + python_text(value) + '"' : python_text(value);
      });
    const std::optional<JsonValue> types = schema.find("type");
    if (!types) return "any";
    if (types->is_array())
      return join(*types->elements(), " | ", [](JsonValue t) { return std::string(union_member(t)); });
    const std::string_view name = *types->as_string();
    if (name == "object") return object(schema, indent);
    if (name == "array") return array(schema, indent);
    return name == "integer" ? "number" : std::string(name);
  }

  std::string array(JsonValue schema, std::string_view indent) const {
    const std::optional<JsonValue> items = schema.find("items");
    if (!items || is_falsy(*items)) return "Array<any>";
    const std::string inner = std::string(indent).append(kStep);
    const std::string above = documentation(*items, inner);
    if (above.empty()) return "Array<" + type(*items, indent) + ">";
    return "Array<\n" + above + inner + type(*items, inner) + "\n" + std::string(indent) + ">";
  }

  std::string object(JsonValue schema, std::string_view indent) const {
    const std::string inner = std::string(indent).append(kStep);
    std::vector<std::string> members;
    for (const bool optional : {false, true})
      for (const Property& property : properties(schema))
        if (property.optional == optional) members.push_back(member(property, inner));
    if (const auto additional = schema.find("additionalProperties"); additional && !additional->is_null()) {
      const bool never = additional->is_bool() && !*additional->as_bool();
      members.push_back(inner + "[k: string]: " + (never ? "never" : type(*additional, inner)));
    }
    if (members.empty()) return "{}";
    return "{\n" + join(members, ",\n", [](const std::string& m) { return m; }) + "\n" + std::string(indent) + "}";
  }

  // The root where something refers to it: its properties as they come.
  std::string root_members() const {
    const std::vector<Property> all = properties(*parameters_);
    if (all.empty()) return "";
    return "\n" + join(all, ",\n", [&](const Property& property) { return member(property, kStep); }) + "\n";
  }

  std::string member(const Property& property, std::string_view indent) const {
    const JsonValue schema = property.schema;
    std::string out = documentation(schema, indent);
    if (const auto value = schema.find("default"); value && !value->is_null())
      out.append(indent) += "// Default: " + (value->is_bool() ? python_text(*value) : tojson(*value)) + "\n";
    return out.append(indent).append(property.name) + (property.optional ? "?: " : ": ") + type(schema, indent);
  }

  static std::vector<Property> properties(JsonValue schema) {
    const std::optional<JsonValue> found = schema.find("properties");
    if (!found) return {};
    std::set<std::string_view> required;
    if (const auto names = schema.find("required"))
      for (const JsonValue name : elements_of(*names)) required.insert(string_or_empty(name));
    std::vector<Property> result;
    for (const JsonMember& property : sorted_members(*found))
      result.push_back({property.key, property.value, !required.contains(property.key)});
    return result;
  }

  std::optional<JsonValue> parameters_;
  std::vector<JsonMember> definitions_;  // seen so far, in the order seen
  std::map<std::string_view, size_t> positions_;
  std::vector<JsonMember> written_definitions_;
  bool self_reference_ = false;
  bool self_reference_at_root_ = false;
};

}  // namespace

std::optional<std::string> typescript_declaration(const std::vector<ChatTool>& tools) {
  std::string out = "# Tools\n\n## functions\nnamespace functions {\n";
  for (const ChatTool& tool : tools) {
    Function function;
    if (!function.read(*tool.definition.find("function"))) return std::nullopt;
    out += function.write(tool) + "\n";
  }
  return out + "}\n";
}

}  // namespace ddtree
