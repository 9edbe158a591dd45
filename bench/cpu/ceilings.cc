#include "ceilings.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "backend/cpu/host_memory.h"
#include "base/check.h"

namespace ddtree::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMemoryBytes = int64_t{512} << 20;
constexpr int kMultiplyAdds = 12;  // independent chains: more than latency × rate of any current core
constexpr int64_t kSteps = 20000;

volatile float sink;

[[gnu::target("avx512f")]] float read_avx512(const char* data, int64_t bytes) {
  __m512 sum[4] = {};
  for (int64_t i = 0; i + 256 <= bytes; i += 256)
    for (int j = 0; j < 4; ++j) sum[j] = _mm512_add_ps(sum[j], _mm512_load_ps(data + i + j * 64));
  float lanes[16];
  _mm512_storeu_ps(lanes, _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
  return lanes[0];
}

[[gnu::target("avx512f")]] float multiply_add_avx512() {
  __m512 chain[kMultiplyAdds];
  for (int i = 0; i < kMultiplyAdds; ++i) chain[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (int64_t s = 0; s < kSteps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kMultiplyAdds; ++i) chain[i] = _mm512_fmadd_ps(chain[i], factor, factor);
  }
  float lanes[16], sum = 0;
  for (const __m512& c : chain) {
    _mm512_storeu_ps(lanes, c);
    sum += lanes[0];
  }
  return sum;
}

using F4 __attribute__((vector_size(16))) = float;

float read_portable(const char* data, int64_t bytes) {
  F4 sum[4] = {};
  for (int64_t i = 0; i + 64 <= bytes; i += 64)
    for (int j = 0; j < 4; ++j) sum[j] += *reinterpret_cast<const F4*>(data + i + j * 16);
  return sum[0][0] + sum[1][0] + sum[2][0] + sum[3][0];
}

float multiply_add_portable() {
  F4 chain[kMultiplyAdds];
  for (int i = 0; i < kMultiplyAdds; ++i) chain[i] = F4{} + static_cast<float>(i);
  for (int64_t s = 0; s < kSteps; ++s) {
#pragma GCC unroll 12
    for (int i = 0; i < kMultiplyAdds; ++i) chain[i] = chain[i] * 0.999f + 0.999f;
  }
  float sum = 0;
  for (const F4& c : chain) sum += c[0];
  return sum;
}

// The best of several runs: the roof, not what neighbours on the machine leave of it.
template <class F>
double best_seconds(int runs, F run) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const Clock::time_point start = Clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

double read_gbps(ThreadPool& pool, int64_t bytes, int runs, bool avx512) {
  const Buffer buffer = cpu::allocate_host(bytes);
  CHECK(buffer.data() != nullptr);
  auto* data = static_cast<char*>(buffer.data());
  std::fill_n(data, bytes, 0);
  const double seconds = best_seconds(runs, [&] {
    pool.run([&](int share) {
      const int64_t lines = bytes / 256;
      const int64_t begin = lines * share / pool.size() * 256, end = lines * (share + 1) / pool.size() * 256;
      sink = avx512 ? read_avx512(data + begin, end - begin) : read_portable(data + begin, end - begin);
    });
  });
  return static_cast<double>(bytes) / seconds / 1e9;
}

}  // namespace

Ceilings measure_ceilings(ThreadPool& pool, int64_t cached_bytes) {
  const bool avx512 = __builtin_cpu_supports("avx512f");
  Ceilings c;
  c.cached_gbps = read_gbps(pool, cached_bytes, 300, avx512);
  c.memory_gbps = read_gbps(pool, kMemoryBytes, 12, avx512);
  const double seconds = best_seconds(
      60, [&] { pool.run([&](int) { sink = avx512 ? multiply_add_avx512() : multiply_add_portable(); }); });
  c.gflops = 2.0 * kMultiplyAdds * kSteps * (avx512 ? 16 : 4) * pool.size() / seconds / 1e9;
  return c;
}

}  // namespace ddtree::bench
