// What this machine can do at most, measured in the same run as the verbs: the roofs that they are compared with.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace ddtree::bench {

struct Ceilings {
  double cached_gbps = 0;  // reading a model-sized working set over and over, all threads
  double memory_gbps = 0;  // reading more than any cache holds
  double gflops = 0;       // float32 multiply-adds from registers
};

// `cached_bytes`: the working set of the first figure.
Ceilings measure_ceilings(ThreadPool& pool, int64_t cached_bytes);

}  // namespace ddtree::bench
