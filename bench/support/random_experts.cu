#include "support/random_experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/moe/layout.h"
#include "base/bf16.h"

namespace ddtree::cuda {
namespace {

__global__ void fill_words(uint32_t* words, int64_t n, uint64_t key) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    words[i] = random_word(key, i);
}
__global__ void fill_scales(uint16_t* scales, int64_t n, uint64_t key) {
  for (int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    scales[i] = random_scale(key, i);
}

// y = W · x for one expert's part; W [out, in].
std::vector<double> multiply(uint64_t seed, ExpertPart part, int32_t expert, int32_t out,
                             const std::vector<double>& x) {
  const uint64_t key = random_key(seed, part, expert);
  const auto in = static_cast<int64_t>(x.size());
  std::vector<double> y(static_cast<size_t>(out));
  for (int64_t row = 0; row < out; ++row) {
    double sum = 0;
    for (int64_t group = 0; group < in / kGroup; ++group) {
      double t = 0;
      for (int64_t word = 0; word < kGroup / 8; ++word) {
        const uint32_t w = random_word(key, row * (in / 8) + group * 4 + word);
        const double* values = x.data() + group * kGroup + word * 8;
        for (int i = 0; i < 8; ++i) t += (static_cast<int>(w >> (4 * i) & 15) - 8) * values[i];
      }
      sum += t * static_cast<double>(bf16_to_f32(random_scale(key, row * (in / kGroup) + group)));
    }
    y[static_cast<size_t>(row)] = sum;
  }
  return y;
}

}  // namespace

Result<RandomExperts> make_random_experts(const ExpertShape& shape, uint64_t seed, cudaStream_t stream) {
  RandomExperts r{shape, seed, {}, {}, 0};
  TRY_ASSIGN(r.gate_up, allocate_device(gate_up_bytes(shape), "packed gate_up"));
  TRY_ASSIGN(r.down, allocate_device(down_bytes(shape), "packed down"));
  const int64_t values = static_cast<int64_t>(shape.hidden) * shape.inter;
  const int64_t word_bytes = values / 2, scale_bytes = values / kGroup * 2;
  TRY_ASSIGN(const Buffer staging, allocate_device(3 * (word_bytes + scale_bytes), "one expert in checkpoint order"));
  ExpertMatrix parts[3];
  for (int p = 0; p < 3; ++p) {
    uint8_t* at = static_cast<uint8_t*>(staging.data()) + p * (word_bytes + scale_bytes);
    parts[p] = {reinterpret_cast<uint32_t*>(at), reinterpret_cast<uint16_t*>(at + word_bytes)};
  }
  cudaEvent_t begin, end;
  TRY(cuda_status(cudaEventCreate(&begin), "cudaEventCreate"));
  TRY(cuda_status(cudaEventCreate(&end), "cudaEventCreate"));
  for (int32_t e = 0; e < shape.experts; ++e) {
    for (int p = 0; p < 3; ++p) {
      const uint64_t key = random_key(seed, static_cast<ExpertPart>(p), e);
      fill_words<<<1024, 256, 0, stream>>>(const_cast<uint32_t*>(parts[p].words), values / 8, key);
      fill_scales<<<1024, 256, 0, stream>>>(const_cast<uint16_t*>(parts[p].scales), values / kGroup, key);
    }
    TRY(cuda_status(cudaEventRecord(begin, stream), "cudaEventRecord"));
    TRY(pack_expert(shape, e, parts[0], parts[1], parts[2], r.gate_up.data(), r.down.data(), stream));
    TRY(cuda_status(cudaEventRecord(end, stream), "cudaEventRecord"));
    TRY(cuda_status(cudaStreamSynchronize(stream), "packing random experts"));
    float ms = 0;
    TRY(cuda_status(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime"));
    r.pack_ms += ms;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return Result<RandomExperts>(std::move(r));
}

std::vector<double> reference_row(const ExpertShape& shape, uint64_t seed, std::span<const float> x,
                                  std::span<const int32_t> ids, std::span<const float> weights) {
  const std::vector<double> input(x.begin(), x.end());
  std::vector<std::vector<double>> y(ids.size());
  std::vector<std::thread> workers;
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= 0)
      workers.emplace_back([&, i] {
        std::vector<double> h = multiply(seed, ExpertPart::kGate, ids[i], shape.inter, input);
        const std::vector<double> up = multiply(seed, ExpertPart::kUp, ids[i], shape.inter, input);
        for (size_t k = 0; k < h.size(); ++k) h[k] = h[k] / (1 + std::exp(-h[k])) * up[k];
        y[i] = multiply(seed, ExpertPart::kDown, ids[i], shape.hidden, h);
      });
  for (std::thread& worker : workers) worker.join();
  std::vector<double> out(static_cast<size_t>(shape.hidden), 0.0);
  for (size_t i = 0; i < y.size(); ++i)
    for (size_t k = 0; k < y[i].size(); ++k) out[k] += static_cast<double>(weights[i]) * y[i][k];
  return out;
}

double relative_error(std::span<const uint16_t> got_bf16, std::span<const double> want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double got = bf16_to_f32(got_bf16[i]);
    if (!std::isfinite(got)) return std::numeric_limits<double>::infinity();
    error += (got - want[i]) * (got - want[i]);
    norm += want[i] * want[i];
  }
  return norm == 0 ? (error == 0 ? 0 : std::numeric_limits<double>::infinity()) : std::sqrt(error / norm);
}

Routing random_routing(const ExpertShape& shape, int32_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  Routing r;
  std::vector<bool> seen(static_cast<size_t>(shape.experts), false);
  for (int32_t t = 0; t < rows; ++t) {
    const auto begin = static_cast<std::ptrdiff_t>(r.ids.size());
    double sum = 0;
    for (int32_t k = 0; k < shape.top_k;) {
      const auto e = static_cast<int32_t>(random() % static_cast<uint64_t>(shape.experts));
      if (std::find(r.ids.begin() + begin, r.ids.end(), e) != r.ids.end()) continue;
      r.ids.push_back(e);
      r.weights.push_back(0.2f + static_cast<float>(random() % 1000) * 1e-3f);
      sum += r.weights.back();
      seen[static_cast<size_t>(e)] = true;
      ++k;
    }
    for (size_t i = static_cast<size_t>(begin); i < r.weights.size(); ++i)
      r.weights[i] = static_cast<float>(r.weights[i] / sum * 2.827);
  }
  r.active = static_cast<int32_t>(std::count(seen.begin(), seen.end(), true));
  return r;
}

std::vector<uint16_t> random_activations(int64_t count, uint64_t seed) {
  std::vector<uint16_t> x(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i)
    x[static_cast<size_t>(i)] =
        f32_to_bf16(static_cast<float>(random_word(random_key(seed, ExpertPart::kGate, -1), i)) * 0x1p-31f - 1);
  return x;
}

}  // namespace ddtree::cuda
