// The case table: every verb at the demo model's sizes and at awkward ones. A case is built when a test asks for it.
#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "row_verb.h"

namespace ddtree::ops {

struct OpCase {
  std::string name;
  std::function<RowVerb()> make;
};

const std::vector<OpCase>& op_cases();
inline void PrintTo(const OpCase& c, std::ostream* out) { *out << c.name; }

}  // namespace ddtree::ops
