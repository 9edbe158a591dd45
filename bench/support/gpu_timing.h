// How GPU times are taken: replays of a CUDA graph of several repetitions, timed by events.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

#include "base/result.h"

namespace ddtree::cuda {

// Enqueues repetition i on the stream; repetitions should touch different weights, so that none is warm in L2.
using Repetition = std::function<Status(int i, cudaStream_t stream)>;

// Microseconds a repetition. Burst: 50 ms idle, one untimed replay, one timed; the median of `samples`.
Result<double> time_burst(const Repetition& body, int repetitions, int samples, cudaStream_t stream);
// Sustained: back to back for about `ms` milliseconds, the mean of the second half.
Result<double> time_sustained(const Repetition& body, int repetitions, double ms, cudaStream_t stream);

// The rate at which a plain streaming kernel reads `bytes` at `data`, GB/s; the best of several launch shapes, burst.
Result<double> read_ceiling(const void* data, int64_t bytes, cudaStream_t stream);

// What the driver's tool says about clocks, power and throttling.
std::string clock_state();

}  // namespace ddtree::cuda
