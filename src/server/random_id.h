#pragma once

#include <cstdint>
#include <string>

namespace ddtree {

// From the system's random numbers. Thread-safe.
std::string random_id();  // 22 of A-Z a-z 0-9 - _, for ids that clients see
uint64_t random_seed();

}  // namespace ddtree
