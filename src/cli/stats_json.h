// A request's statistics as members of a JSON object, the same in every subcommand.
#pragma once

#include "base/json_writer.h"
#include "engine/request.h"

namespace ddtree {

void write_stats(JsonWriter& out, const RequestStats& stats);

}  // namespace ddtree
