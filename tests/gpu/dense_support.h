// What the tests of dense verbs share: buffers between guards, and comparisons.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "backend/cuda/device_memory.h"
#include "backend/cuda/gpu.h"
#include "base/bf16.h"

namespace ddtree::cuda {

inline constexpr int32_t kSmallSharedBytes = 101376;  // of sm_120

// The GPU at hand; with the shared memory of sm_120; without wgmma, where it has it.
inline std::vector<Gpu> gpu_configurations() {
  const Result<Gpu> gpu = current_gpu();
  EXPECT_TRUE(gpu.ok());
  std::vector<Gpu> all(gpu->wgmma ? 3 : 2, *gpu);
  all[1].shared_bytes = std::min(gpu->shared_bytes, kSmallSharedBytes);
  if (gpu->wgmma) all[2].wgmma = false;
  return all;
}

// Device memory full of 0xff, NaN in every format, with guards before and behind.
class Guarded {
 public:
  explicit Guarded(int64_t bytes) : bytes_(bytes) {
    Result<Buffer> buffer = allocate_device(bytes + 2 * kGuard, "a test");
    EXPECT_TRUE(buffer.ok());
    buffer_ = *std::move(buffer);
    poison();
  }
  template <class T>
  explicit Guarded(const std::vector<T>& host) : Guarded(static_cast<int64_t>(host.size() * sizeof(T))) {
    EXPECT_EQ(cudaMemcpy(data(), host.data(), static_cast<size_t>(bytes_), cudaMemcpyHostToDevice), cudaSuccess);
  }
  void poison() { EXPECT_EQ(cudaMemset(buffer_.data(), 0xff, static_cast<size_t>(bytes_ + 2 * kGuard)), cudaSuccess); }
  void* data() const { return static_cast<uint8_t*>(buffer_.data()) + kGuard; }

  // Everything inside, after a check of the guards.
  template <class T>
  std::vector<T> read() const {
    std::vector<uint8_t> all(static_cast<size_t>(bytes_ + 2 * kGuard));
    EXPECT_EQ(cudaMemcpy(all.data(), buffer_.data(), all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    const auto poisoned = [](uint8_t b) { return b == 0xff; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuard, poisoned)) << "written before a buffer";
    EXPECT_TRUE(std::all_of(all.end() - kGuard, all.end(), poisoned)) << "written behind a buffer";
    std::vector<T> inside(static_cast<size_t>(bytes_) / sizeof(T));
    std::memcpy(inside.data(), all.data() + kGuard, static_cast<size_t>(bytes_));
    return inside;
  }

 private:
  static constexpr int64_t kGuard = 4096;
  int64_t bytes_;
  Buffer buffer_;
};

inline std::vector<float> to_float(std::span<const uint16_t> bf16) {
  std::vector<float> values(bf16.size());
  std::transform(bf16.begin(), bf16.end(), values.begin(), bf16_to_f32);
  return values;
}

// ‖got − want‖ / ‖want‖; infinite where a value is not finite.
template <class A, class B>
double distance(const A& got, const B& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = got[i], w = want[i];
    if (!std::isfinite(g) || !std::isfinite(w)) return std::numeric_limits<double>::infinity();
    error += (g - w) * (g - w);
    norm += w * w;
  }
  return std::sqrt(error / std::max(norm, 1e-300));
}

// A rounding to bf16 is off by at most 2⁻⁹ of a value, 1.7e-3 of the norm on average over a binade; independent ones
// add as squares. A third on top for the luck of few values.
inline double rounding_error(int roundings) { return 1.7e-3 * 1.33 * std::sqrt(static_cast<double>(roundings)); }

}  // namespace ddtree::cuda
