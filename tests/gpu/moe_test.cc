// The whole mixture-of-experts layer on a GPU: against the reference backend, against a restatement in double, and bit
// for bit against itself in other company.
#include "backend/cuda/moe/moe.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/ref/ref_backend.h"
#include "dense_support.h"
#include "support/random_dense.h"
#include "support/random_moe.h"

namespace ddtree::cuda {
namespace {

MoeShape shape_of(const ExpertShape& experts, int32_t shared_inter) {
  MoeShape shape;
  shape.experts = experts;
  shape.router.routing.top_k = experts.top_k;
  shape.router.routing.scale = 2.827f;
  shape.router.experts = experts.experts;
  shape.router.hidden = experts.hidden;
  shape.shared_inter = shared_inter;
  return shape;
}

const ExpertShape kDemo{32, 256, 128, 4};

class Layer {
 public:
  Layer(const MoeShape& shape, uint64_t seed, int32_t max_rows)
      : device_(*expert_device()), max_rows_(max_rows), work_(moe_workspace_bytes(shape, max_rows)) {
    EXPECT_TRUE(check_moe_shape(shape).ok());
    Result<RandomMoe> moe = make_random_moe(shape, seed, 1, nullptr);
    EXPECT_TRUE(moe.ok());
    moe_ = *std::move(moe);
    EXPECT_TRUE(init_moe_workspace(shape, max_rows, work_.data(), nullptr).ok());
    EXPECT_EQ(cudaStreamCreate(&side_.stream), cudaSuccess);
    EXPECT_EQ(cudaEventCreate(&side_.begin), cudaSuccess);
    EXPECT_EQ(cudaEventCreate(&side_.end), cudaSuccess);
  }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  ~Layer() {
    cudaEventDestroy(side_.begin);
    cudaEventDestroy(side_.end);
    cudaStreamDestroy(side_.stream);
  }
  const MoeShape& shape() const { return moe_.shape; }

  // bf16 bits [rows, hidden].
  std::vector<uint16_t> run(const std::vector<uint16_t>& x, int live = -1, bool beside = false) {
    const auto rows = static_cast<int32_t>(x.size() / static_cast<size_t>(shape().experts.hidden));
    const Guarded input(x), out(static_cast<int64_t>(x.size()) * 2), live_rows(std::vector<int32_t>{live});
    MoeArgs args;
    args.weights = moe_.weights(0);
    args.x = input.data(), args.out = out.data();
    args.rows = rows, args.max_rows = max_rows_;
    if (live >= 0) args.live_rows = static_cast<const int32_t*>(live_rows.data());
    args.workspace = work_.data();
    if (beside) args.side = &side_;
    const Status status = run_moe(shape(), device_, args, nullptr);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    work_.read<uint8_t>();
    return out.read<uint16_t>();
  }

 private:
  ExpertDevice device_;
  int32_t max_rows_;
  Guarded work_;
  RandomMoe moe_;
  MoeSide side_;
};

// Roundings to bf16 of h, y and the output, each of relative error ≤ 2⁻⁹ and 1.7e-3 of the norm on average over a
// binade, for routed and shared alike; what they add up to stays below.
constexpr double kMaxError = 5e-3;

// The layer's weights in checkpoint order.
struct HostLayer {
  std::vector<std::vector<uint32_t>> words;
  std::vector<std::vector<uint16_t>> scales;
  std::vector<uint16_t> router, gate, up, down;
  std::vector<float> bias;
  MoeSource source;
};

Linear quantised(HostLayer& host, uint64_t key, int64_t out, int64_t in) {
  std::vector<uint32_t> words;
  std::vector<uint16_t> scales;
  for (int64_t i = 0; i < out * in / 8; ++i) words.push_back(random_word(key, i));
  for (int64_t i = 0; i < out * in / 32; ++i) scales.push_back(random_scale(key, i));
  host.words.push_back(std::move(words));
  host.scales.push_back(std::move(scales));
  return {TensorView(host.words.back().data(), DType::kI32, {out, in / 8}),
          TensorView(host.scales.back().data(), DType::kBF16, {out, in / 32}), 32, out, in};
}

Linear plain(std::vector<uint16_t>& weights, int64_t out, int64_t in) {
  return {TensorView(weights.data(), DType::kBF16, {out, in}), {}, 0, out, in};
}

void fill(HostLayer& host, const MoeShape& shape, uint64_t seed) {
  const ExpertShape& e = shape.experts;
  host.source.routing = shape.router.routing;
  for (int32_t i = 0; i < e.experts; ++i) {
    host.source.experts.push_back({quantised(host, random_key(seed, ExpertPart::kGate, i), e.inter, e.hidden),
                                   quantised(host, random_key(seed, ExpertPart::kUp, i), e.inter, e.hidden),
                                   quantised(host, random_key(seed, ExpertPart::kDown, i), e.hidden, e.inter)});
    host.bias.push_back(random_bias(seed, i));
  }
  for (int64_t i = 0; i < static_cast<int64_t>(e.experts) * e.hidden; ++i)
    host.router.push_back(random_weight(seed, i));
  host.source.router = plain(host.router, e.experts, e.hidden);
  host.source.bias = TensorView(host.bias.data(), DType::kF32, {e.experts});
  if (shape.shared_inter == 0) return;
  for (int64_t i = 0; i < 2 * static_cast<int64_t>(shape.shared_inter) * e.hidden; ++i)
    (i / e.hidden % 2 == 0 ? host.gate : host.up).push_back(random_weight(seed + 1000003, i));
  for (int64_t i = 0; i < static_cast<int64_t>(shape.shared_inter) * e.hidden; ++i)
    host.down.push_back(random_weight(seed + 2000003, i));
  host.source.shared = {plain(host.gate, shape.shared_inter, e.hidden), plain(host.up, shape.shared_inter, e.hidden),
                        plain(host.down, e.hidden, shape.shared_inter)};
}

void expect_as_ref(const MoeShape& shape, const std::vector<int32_t>& row_counts) {
  constexpr uint64_t kSeed = 5;
  HostLayer host;
  host.words.reserve(static_cast<size_t>(shape.experts.experts) * 3);
  fill(host, shape, kSeed);
  const std::unique_ptr<Backend> ref = make_ref_backend();
  Result<std::unique_ptr<PreparedMoe>> prepared = ref->prepare(host.source);
  ASSERT_TRUE(prepared.ok()) << prepared.error().message;
  Layer layer(shape, kSeed, 256);
  const int64_t hidden = shape.experts.hidden;
  for (const int32_t rows : row_counts) {
    const std::vector<uint16_t> x = random_activations(rows * hidden, static_cast<uint64_t>(rows));
    std::vector<float> input = to_float(x), want(input.size());
    ref->moe(TensorView(want.data(), DType::kF32, {rows, hidden}),
             TensorView(input.data(), DType::kF32, {rows, hidden}), **prepared);
    const std::vector<float> got = to_float(layer.run(x));
    for (int32_t row = 0; row < rows; ++row) {
      const auto begin = static_cast<size_t>(row * hidden), n = static_cast<size_t>(hidden);
      EXPECT_LT(distance(std::span(got).subspan(begin, n), std::span(want).subspan(begin, n)), kMaxError)
          << "row " << row << " of " << rows;
    }
  }
}

TEST(MoeTiny, AsTheReferenceBackend) { expect_as_ref(shape_of(kDemo, 128), {1, 5}); }
TEST(Moe, RoutedExpertsAsTheReferenceBackend) { expect_as_ref(shape_of(kDemo, 0), {1, 9, 60}); }
TEST(Moe, WithSharedExpertAsTheReferenceBackend) {
  expect_as_ref(shape_of(kDemo, 128), {1, 9, 60});
  expect_as_ref(shape_of({10, 384, 256, 3}, 192), {1, 20});
}

TEST(Moe, KimiRankAgainstDouble) {
  const MoeShape shape = shape_of({384, 7168, 256, 8}, 256);
  Layer layer(shape, 3, 1024);
  for (const int32_t rows : {1, 9, 200}) {
    const std::vector<uint16_t> x = random_activations(static_cast<int64_t>(rows) * 7168, static_cast<uint64_t>(rows));
    const std::vector<uint16_t> got = layer.run(x);
    for (const int32_t row : {0, rows - 1}) {
      const auto begin = static_cast<size_t>(row) * 7168;
      const MoeRow want = reference_moe_row(shape, 3, to_float(std::span(x).subspan(begin, 7168)));
      ASSERT_GT(want.margin, 3e-6) << "another seed, please: the choice is a draw";
      EXPECT_LT(relative_error(std::span(got).subspan(begin, 7168), want.out), kMaxError) << row << " of " << rows;
    }
  }
}

TEST(Moe, BitsDoNotDependOnTheBatch) {
  for (const MoeShape& shape : {shape_of(kDemo, 128), shape_of({24, 1152, 384, 6}, 192)}) {
    Layer layer(shape, 7, 1024);
    const auto hidden = static_cast<size_t>(shape.experts.hidden);
    const std::vector<uint16_t> x = random_activations(1024 * static_cast<int64_t>(hidden), 8);
    const std::vector<uint16_t> all = layer.run(x);
    EXPECT_EQ(layer.run(x, -1, true), all);
    std::mt19937 random(9);
    for (const int rows : {1, 9, 33, 90, 300}) {
      std::vector<uint16_t> some;
      std::vector<size_t> pick;
      for (int i = 0; i < rows; ++i) {
        pick.push_back(random() % 1024);
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(pick.back() * hidden);
        some.insert(some.end(), begin, begin + static_cast<std::ptrdiff_t>(hidden));
      }
      const std::vector<uint16_t> got = layer.run(some, -1, rows % 2 == 0);
      for (size_t i = 0; i < pick.size(); ++i)
        EXPECT_EQ(std::memcmp(&got[i * hidden], &all[pick[i] * hidden], hidden * 2), 0)
            << "row " << i << " of " << rows;
    }
  }
}

// Padding rows reach no expert and disturb nobody; only the shared expert sees them.
TEST(MoeTiny, PaddingRows) {
  Layer layer(shape_of(kDemo, 0), 2, 16);
  const std::vector<uint16_t> x = random_activations(9 * 256, 4);
  const std::vector<uint16_t> all = layer.run(x), some = layer.run(x, 6);
  EXPECT_TRUE(std::equal(some.begin(), some.begin() + 6 * 256, all.begin()));
  EXPECT_TRUE(std::all_of(some.begin() + 6 * 256, some.end(), [](uint16_t v) { return v == 0; }));
}

TEST(Moe, RefusesPartsThatDisagree) {
  MoeShape shape = shape_of(kDemo, 128);
  shape.router.experts = 64;
  const Status status = check_moe_shape(shape);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("64 experts"), std::string::npos);
  EXPECT_FALSE(check_moe_shape(shape_of(kDemo, 100)).ok());
}

}  // namespace
}  // namespace ddtree::cuda
