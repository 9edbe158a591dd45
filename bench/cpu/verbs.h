// The verbs that op_bench times: one layer's work of the demo model, and single matrices of Kimi K2.6.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"

namespace ddtree::bench {

// A verb with its weights on one backend, in as many copies as make the working set that a model would have: one copy
// alone would stay in a cache that the model does not fit.
class Verb {
 public:
  virtual ~Verb() = default;
  virtual int copies() const = 0;
  virtual void run(int copy, int64_t rows) = 0;  // on the first `rows` rows of the input
  virtual TensorView output(int64_t rows) const = 0;
};

struct VerbCase {
  std::string name, shape;
  bool cached = true;                         // the working set fits the last-level cache, as the demo model does
  std::function<double(int64_t rows)> bytes;  // read per run at least: weights, and for attend the keys
  std::function<double(int64_t rows)> flops;
  std::function<std::unique_ptr<Verb>(Backend& backend, int64_t working_set, int64_t rows)> make;
};

std::vector<VerbCase> verb_cases();

}  // namespace ddtree::bench
