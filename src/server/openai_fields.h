// How a request's object becomes a struct: tables of fields, and the fields that both endpoints share.
#pragma once

#include <span>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "server/limits.h"
#include "server/openai_request.h"

namespace ddtree {

// A field that is implemented. A member that is null is as good as absent, and is not read.
template <class T>
struct Field {
  std::string_view name;
  Status (*read)(JsonValue value, T& out, const ApiLimits& limits);
};

// A field that is known but not implemented: only this value, which changes nothing, is accepted.
struct DefaultField {
  std::string_view name;
  std::string_view only;  // as JSON; "null": no value at all
};

template <class T>
const Field<T>* find_field(std::span<const Field<T>> fields, std::string_view name) {
  for (const Field<T>& field : fields)
    if (field.name == name) return &field;
  return nullptr;
}

// Refuses what is known but not implemented. Fields that nobody knows pass.
Status check_other_field(std::string_view name, JsonValue value, std::span<const DefaultField> defaults);

// The fields of both endpoints.
std::span<const Field<GenerationOptions>> generation_fields();

// Whether they agree with each other; completes what follows from several.
Status finish_generation_options(JsonValue root, GenerationOptions& options);

// Reads all members of `root`: those of `fields` into `request`, those of both endpoints into its options.
template <class Request>
Status read_fields(JsonValue root, std::span<const Field<Request>> fields, std::span<const DefaultField> defaults,
                   const ApiLimits& limits, Request& request) {
  TRY_ASSIGN(const JsonMembers members, root.members());
  for (const auto [name, value] : members) {
    if (value.is_null()) continue;
    if (const auto* field = find_field(fields, name)) {
      TRY(field->read(value, request, limits));
    } else if (const auto* shared = find_field(generation_fields(), name)) {
      TRY(shared->read(value, request.options, limits));
    } else {
      TRY(check_other_field(name, value, defaults));
    }
  }
  return finish_generation_options(root, request.options);
}

}  // namespace ddtree
