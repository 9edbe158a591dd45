// Dense products on a GPU: against sums in double from unpacked weights and against the reference backend, and bit for
// bit against themselves in other batches, places, tiles and shared-memory sizes.
#include "backend/cuda/gemm/gemm.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "backend/cuda/gemm/layout.h"
#include "backend/cuda/gemm/mlp.h"
#include "backend/ref/ref_backend.h"
#include "gpu/dense_support.h"
#include "support/random_dense.h"

namespace ddtree::cuda {
namespace {

constexpr GemmTile kAllTiles[] = {GemmTile::k8, GemmTile::k16, GemmTile::k32, GemmTile::k64, GemmTile::k64Tall};
constexpr double kSumError = 2e-5;  // fp32 sums of up to 18432 products

class Product {
 public:
  explicit Product(const GemmShape& shape, uint64_t seed = 1) : shape_(shape), seed_(seed) {
    EXPECT_TRUE(check_gemm_shape(shape, "a test").ok());
    Result<Buffer> weights = random_gemm_weights(shape, seed, nullptr);
    EXPECT_TRUE(weights.ok());
    weights_ = *std::move(weights);
  }

  // fp32 [rows, groups · outputs] of bf16 x [rows, groups · in], from poisoned buffers between guards.
  std::vector<float> run(const std::vector<uint16_t>& x, const Gpu& gpu, std::optional<GemmTile> tile = {},
                         int times = 1) const {
    const int64_t width = static_cast<int64_t>(shape_.groups) * shape_.in;
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(x.size()) / width);
    const Guarded in(x), out(static_cast<int64_t>(rows) * shape_.groups * shape_.rows * 4);
    const Guarded work(gemm_workspace_bytes(shape_, rows));
    EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
    GemmArgs args;
    args.x = in.data();
    args.x_stride = width;
    args.x_group = shape_.in;
    args.rows = rows;
    args.out = {.store = GemmStore::kF32,
                .data = out.data(),
                .row_stride = static_cast<int64_t>(shape_.groups) * shape_.rows,
                .group_stride = shape_.rows};
    args.workspace = work.data();
    args.tile = tile;
    for (int i = 0; i < times; ++i) EXPECT_TRUE(run_gemm({shape_, weights_.data()}, gpu, args, nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    work.read<uint8_t>();
    return out.read<float>();
  }

  // The worst of some outputs of some rows.
  void expect_right(const std::vector<uint16_t>& x, const std::vector<float>& out) const {
    const int64_t width = static_cast<int64_t>(shape_.groups) * shape_.in;
    const auto rows = static_cast<int64_t>(x.size()) / width;
    std::vector<double> got, want;
    for (const int64_t row : {int64_t{0}, rows / 2, rows - 1})
      for (int32_t group = 0; group < shape_.groups; ++group)
        for (int32_t i = 0; i < std::min(48, shape_.rows); ++i) {
          const int32_t o = i < 8 ? shape_.rows - 1 - i % shape_.rows : i * 1031 % shape_.rows;
          const auto at = static_cast<size_t>(row * width + group * shape_.in);
          want.push_back(random_gemm_output(shape_, seed_, group, o,
                                            to_float(std::span(x).subspan(at, static_cast<size_t>(shape_.in)))));
          got.push_back(static_cast<double>(out[static_cast<size_t>((row * shape_.groups + group) * shape_.rows + o)]));
        }
    EXPECT_LT(distance(got, want), kSumError);
    EXPECT_TRUE(std::all_of(out.begin(), out.end(), [](float v) { return std::isfinite(v); })) << "left unwritten";
  }

  std::vector<uint16_t> inputs(int32_t rows, uint64_t seed) const {
    return random_host_matrix(rows, static_cast<int64_t>(shape_.groups) * shape_.in, seed + 1000);
  }

 private:
  GemmShape shape_;
  uint64_t seed_;
  Buffer weights_;
};

void expect_parity(const GemmShape& shape, const std::vector<int32_t>& row_counts) {
  const Product product(shape);
  for (const int32_t rows : row_counts) {
    const std::vector<uint16_t> x = product.inputs(rows, static_cast<uint64_t>(rows));
    std::vector<float> first;
    for (const Gpu& gpu : gpu_configurations())
      for (const GemmTile tile : kAllTiles) {
        SCOPED_TRACE("rows " + std::to_string(rows) + ", tile " + std::to_string(static_cast<int>(tile)) + ", shared " +
                     std::to_string(gpu.shared_bytes));
        const std::vector<float> out = product.run(x, gpu, tile);
        if (first.empty()) product.expect_right(x, first = out);
        EXPECT_EQ(std::memcmp(out.data(), first.data(), out.size() * 4), 0) << "bits differ from the first tile's";
      }
  }
}

TEST(GemmLayout, EveryWeightHasItsPlace) {
  const int64_t k_blocks = 3, rows = 2 * kGemmBlockRows, in = k_blocks * kGemmBlockK;
  std::vector<int> seen(static_cast<size_t>(rows * in));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t k = 0; k < in; ++k) {
      const int64_t at = gemm_offset(row, k, k_blocks);
      ASSERT_EQ(at % 2, 0);
      ASSERT_LT(at, rows * in * 2);
      ++seen[static_cast<size_t>(at / 2)];
    }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
}

TEST(GemmPlan, FitsWhateverTheShape) {
  for (const GemmShape shape : {GemmShape{1, 1, 64}, GemmShape{64, 192, 1536}, GemmShape{1, 163840, 7168},
                                GemmShape{1, 2112, 7168}, GemmShape{8, 512, 128}})
    for (const int32_t shared : {232448, 101376})
      for (const GemmTile tile : kAllTiles)
        for (const int32_t rows : {1, 64, 256}) {
          const GemmPlan plan = plan_gemm(shape, {132, shared, true}, tile, rows);
          EXPECT_GE(plan.ring_stages, 2);
          EXPECT_LE(plan.shared_bytes, shared);
          EXPECT_GE(plan.grid, 1);
          EXPECT_LE(plan.slices, shape.in / 64);
          EXPECT_GE(plan.weight_blocks, plan.atoms);
        }
}

TEST(GemmPlan, RefusesWhatTheKernelsDoNotTake) {
  EXPECT_FALSE(check_gemm_shape({1, 64, 96}, "o_proj").ok());
  EXPECT_NE(check_gemm_shape({1, 64, 96}, "o_proj").error().message.find("o_proj"), std::string::npos);
  EXPECT_FALSE(check_gemm_shape({1, 0, 64}, "o_proj").ok());
  EXPECT_FALSE(check_gemm_shape({0, 64, 64}, "o_proj").ok());
  EXPECT_TRUE(check_gemm_shape({1, 1, 64}, "o_proj").ok());
}

TEST(GemmTiny, OneBlockAndMore) {
  expect_parity({1, 64, 64}, {1, 9});
  expect_parity({1, 100, 320}, {3, 33});
}
TEST(GemmTiny, Groups) { expect_parity({3, 72, 128}, {1, 17}); }

TEST(Gemm, AwkwardSizes) {
  expect_parity({1, 1, 64}, {1, 3});
  expect_parity({1, 333, 576}, {1, 3, 7, 9, 33, 255, 257});
  expect_parity({5, 192, 128}, {2, 70});
  expect_parity({3, 320, 192}, {65});
}
TEST(Gemm, DemoShapes) {
  expect_parity({1, 704, 256}, {1, 9, 64});  // q_a and kv_a
  expect_parity({4, 192, 128}, {5});         // q_b
  expect_parity({4, 512, 128}, {5});         // absorption
  expect_parity({4, 128, 512}, {5});
}
TEST(Gemm, KimiRankShapes) {
  expect_parity({1, 2112, 7168}, {1, 40});
  expect_parity({8, 192, 1536}, {16});
  expect_parity({8, 512, 128}, {8});
  expect_parity({8, 128, 512}, {64});
  expect_parity({1, 7168, 1024}, {7});
  expect_parity({1, 512, 7168}, {60});
  expect_parity({1, 7168, 256}, {4});
}

// One row alone, and inside any batch at any place.
TEST(Gemm, BitsDoNotDependOnTheBatch) {
  for (const GemmShape shape : {GemmShape{1, 512, 7168}, GemmShape{1, 200, 256}, GemmShape{2, 192, 640}}) {
    const Product product(shape);
    const int32_t rows = 300;
    const std::vector<uint16_t> all = product.inputs(rows, 5);
    const size_t in = static_cast<size_t>(shape.groups) * static_cast<size_t>(shape.in),
                 width = static_cast<size_t>(shape.groups) * static_cast<size_t>(shape.rows);
    const std::vector<Gpu> gpus = gpu_configurations();
    const std::vector<float> base = product.run(all, gpus[0]);
    std::mt19937 random(7);
    for (const Gpu& gpu : gpus)
      for (const int32_t m : {1, 2, 8, 9, 16, 33, 64, 130}) {
        std::vector<size_t> pick(static_cast<size_t>(m));
        std::generate(pick.begin(), pick.end(), [&] { return random() % rows; });
        std::vector<uint16_t> x;
        for (const size_t row : pick) x.insert(x.end(), &all[row * in], &all[row * in] + in);
        const std::vector<float> out = product.run(x, gpu);
        size_t different = 0;
        for (size_t i = 0; i < pick.size(); ++i)
          different += std::memcmp(&out[i * width], &base[pick[i] * width], width * 4) != 0;
        EXPECT_EQ(different, 0u) << m << " rows, shared " << gpu.shared_bytes;
      }
  }
}

TEST(GemmTiny, NanStaysInItsRow) {
  const Product product({1, 128, 512});
  std::vector<uint16_t> x = product.inputs(12, 3);
  const Gpu gpu = gpu_configurations()[0];
  const std::vector<float> base = product.run(x, gpu);
  x[5 * 512 + 100] = 0x7fc0;
  for (const GemmTile tile : kAllTiles) {
    const std::vector<float> out = product.run(x, gpu, tile);
    for (size_t row = 0; row < 12; ++row) {
      if (row == 5)
        EXPECT_TRUE(std::isnan(out[row * 128]));
      else
        EXPECT_EQ(std::memcmp(&out[row * 128], &base[row * 128], 512), 0) << "row " << row;
    }
  }
}

// Launches leave the counters as they need them, and repeat to the bit.
TEST(Gemm, RepeatsToTheBit) {
  const Product product({1, 512, 7168});
  const std::vector<uint16_t> x = product.inputs(20, 4);
  const Gpu gpu = gpu_configurations()[0];
  EXPECT_EQ(product.run(x, gpu), product.run(x, gpu, {}, 20));
}

// --- the mlp ---

struct MlpCase {
  MlpShape shape;
  std::vector<uint16_t> gate, up, down;

  explicit MlpCase(const MlpShape& s)
      : shape(s),
        gate(random_host_matrix(s.inter, s.hidden, 11)),
        up(random_host_matrix(s.inter, s.hidden, 12)),
        down(random_host_matrix(s.hidden, s.inter, 13)) {}

  std::vector<uint16_t> run(const std::vector<uint16_t>& x, const Gpu& gpu) const {
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(x.size()) / shape.hidden);
    const Guarded g(gate), u(up), d(down), in(x), out(static_cast<int64_t>(x.size()) * 2);
    const Guarded packed_gate_up(gemm_bytes(mlp_gate_up(shape))), packed_down(gemm_bytes(mlp_down(shape)));
    EXPECT_TRUE(check_mlp_shape(shape).ok());
    EXPECT_TRUE(pack_mlp(shape, g.data(), u.data(), d.data(), packed_gate_up.data(), packed_down.data(), nullptr).ok());
    const Guarded work(mlp_workspace_bytes(shape, rows));
    EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_TRUE(run_mlp(shape, gpu,
                        {packed_gate_up.data(), packed_down.data(), in.data(), out.data(), rows, work.data()}, nullptr)
                    .ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    packed_gate_up.read<uint8_t>();
    packed_down.read<uint8_t>();
    work.read<uint8_t>();
    return out.read<uint16_t>();
  }

  std::vector<float> reference(const std::vector<uint16_t>& x) const {
    const auto linear = [](const std::vector<uint16_t>& w, int64_t out, int64_t in) {
      Linear l;
      l.weight = TensorView(const_cast<uint16_t*>(w.data()), DType::kBF16, {out, in});
      l.out = out;
      l.in = in;
      return l;
    };
    const std::unique_ptr<Backend> ref = make_ref_backend();
    const Result<std::unique_ptr<PreparedMlp>> prepared =
        ref->prepare(MlpSource{linear(gate, shape.inter, shape.hidden), linear(up, shape.inter, shape.hidden),
                               linear(down, shape.hidden, shape.inter)});
    EXPECT_TRUE(prepared.ok());
    const auto rows = static_cast<int64_t>(x.size()) / shape.hidden;
    std::vector<float> in = to_float(x), out(x.size());
    ref->mlp(TensorView(out.data(), DType::kF32, {rows, shape.hidden}),
             TensorView(in.data(), DType::kF32, {rows, shape.hidden}), **prepared);
    return out;
  }
};

// Two roundings: of the values between the products and of the result.
void expect_mlp(const MlpShape& shape, int32_t rows) {
  const MlpCase mlp(shape);
  std::vector<uint16_t> x = random_host_matrix(rows, shape.hidden, 21);
  for (uint16_t& v : x) v = static_cast<uint16_t>(v + (8 << 7));  // times 2⁸: gates of every size
  const std::vector<float> want = mlp.reference(x);
  for (const Gpu& gpu : gpu_configurations())
    EXPECT_LT(distance(to_float(mlp.run(x, gpu)), want), rounding_error(2)) << rows << " rows";
}

TEST(GemmTiny, Mlp) { expect_mlp({256, 128}, 3); }
TEST(Gemm, MlpOfTheDemo) {
  expect_mlp({256, 768}, 9);
  expect_mlp({256, 768}, 130);
}
TEST(Gemm, MlpOfAKimiRank) { expect_mlp({7168, 256}, 2); }

}  // namespace
}  // namespace ddtree::cuda
