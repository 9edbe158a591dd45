#include "support/random_moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/cuda/cuda_status.h"
#include "backend/cuda/device_memory.h"
#include "support/random_dense.h"

namespace ddtree::cuda {
namespace {

constexpr uint64_t kGateUpSeed = 1000003, kDownSeed = 2000003;  // added to the layer's

std::vector<double> shared_row(const MoeShape& shape, uint64_t seed, std::span<const float> x) {
  const GemmShape first = mlp_gate_up(shared_shape(shape)), second = mlp_down(shared_shape(shape));
  std::vector<float> h;
  for (int32_t i = 0; i < shape.shared_inter; ++i) {
    const double gate = random_gemm_output(first, seed + kGateUpSeed, 0, 2 * i, x);
    h.push_back(static_cast<float>(gate / (1 + std::exp(-gate)) *
                                   random_gemm_output(first, seed + kGateUpSeed, 0, 2 * i + 1, x)));
  }
  std::vector<double> y;
  for (int32_t i = 0; i < shape.experts.hidden; ++i) y.push_back(random_gemm_output(second, seed + kDownSeed, 0, i, h));
  return y;
}

}  // namespace

MoeWeights RandomMoe::weights(int copy) const {
  const auto i = static_cast<size_t>(copy) % router.size();
  MoeWeights w{experts.gate_up.data(), experts.down.data(), router[i].data(), static_cast<const float*>(bias.data())};
  if (shape.shared_inter > 0) w.shared_gate_up = shared_gate_up[i].data(), w.shared_down = shared_down[i].data();
  return w;
}

float random_bias(uint64_t seed, int32_t expert) {
  return static_cast<float>(random_word(random_key(seed, ExpertPart::kUp, -2), expert)) * (0.1f * 0x1p-32f);
}

Result<RandomMoe> make_random_moe(const MoeShape& shape, uint64_t seed, int copies, cudaStream_t stream) {
  RandomMoe moe;
  moe.shape = shape;
  moe.seed = seed;
  TRY_ASSIGN(moe.experts, make_random_experts(shape.experts, seed, stream));
  std::vector<float> bias;
  for (int32_t e = 0; e < shape.experts.experts; ++e) bias.push_back(random_bias(seed, e));
  TRY_ASSIGN(moe.bias, allocate_device(static_cast<int64_t>(bias.size()) * 4, "biases"));
  TRY(cuda_status(cudaMemcpy(moe.bias.data(), bias.data(), bias.size() * 4, cudaMemcpyHostToDevice), "biases"));
  for (int i = 0; i < copies; ++i) {
    TRY_ASSIGN(Buffer router, random_gemm_weights(router_gemm(shape.router), seed, stream));
    moe.router.push_back(std::move(router));
    if (shape.shared_inter == 0) continue;
    TRY_ASSIGN(Buffer gate_up, random_gemm_weights(mlp_gate_up(shared_shape(shape)), seed + kGateUpSeed, stream));
    TRY_ASSIGN(Buffer down, random_gemm_weights(mlp_down(shared_shape(shape)), seed + kDownSeed, stream));
    moe.shared_gate_up.push_back(std::move(gate_up));
    moe.shared_down.push_back(std::move(down));
  }
  TRY(cuda_status(cudaStreamSynchronize(stream), "random weights"));
  return Result<RandomMoe>(std::move(moe));
}

MoeRow reference_moe_row(const MoeShape& shape, uint64_t seed, std::span<const float> x) {
  const int32_t experts = shape.experts.experts;
  const auto top_k = static_cast<size_t>(shape.experts.top_k);
  std::vector<float> score, biased;
  for (int32_t e = 0; e < experts; ++e) {
    const auto logit = static_cast<float>(random_gemm_output(router_gemm(shape.router), seed, 0, e, x));
    score.push_back(static_cast<float>(1 / (1 + std::exp(-static_cast<double>(logit)))));
    biased.push_back(score.back() + random_bias(seed, e));
  }
  std::vector<int32_t> order(static_cast<size_t>(experts));
  std::iota(order.begin(), order.end(), 0);
  const auto of = [](const std::vector<float>& v, int32_t e) { return v[static_cast<size_t>(e)]; };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return of(biased, a) > of(biased, b); });
  MoeRow row;
  row.margin = top_k < order.size() ? of(biased, order[top_k - 1]) - of(biased, order[top_k]) : 1;
  row.ids.assign(order.begin(), order.begin() + shape.experts.top_k);
  std::sort(row.ids.begin(), row.ids.end());
  double sum = 0;
  for (const int32_t e : row.ids) sum += of(score, e);
  for (const int32_t e : row.ids)
    row.weights.push_back(static_cast<float>(of(score, e) / sum * shape.router.routing.scale));
  row.out = reference_row(shape.experts, seed, x, row.ids, row.weights);
  if (shape.shared_inter == 0) return row;
  const std::vector<double> y = shared_row(shape, seed, x);
  for (size_t i = 0; i < y.size(); ++i) row.out[i] += y[i];
  return row;
}

}  // namespace ddtree::cuda
