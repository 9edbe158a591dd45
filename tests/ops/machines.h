// The backends that the tests of this folder run on. The program prints at its start which it runs and which this
// machine cannot run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/registry.h"

namespace ddtree::ops {

struct Machine {
  std::string name;
  BackendOptions options;
};

std::vector<Machine> machines();         // ref first
std::vector<Machine> judged_machines();  // all but ref
std::unique_ptr<Backend> make(const Machine& machine, int32_t threads = 1);
std::unique_ptr<Backend> make_ref();

}  // namespace ddtree::ops
