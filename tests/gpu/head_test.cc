// The head on a GPU: against the reference backend, its order against the reference's on the same logits, and bit for
// bit against itself in other batches.
#include "backend/cuda/gemm/head.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/ref/ranking.h"
#include "backend/ref/ref_backend.h"
#include "gpu/dense_support.h"
#include "support/random_dense.h"

namespace ddtree::cuda {
namespace {

struct HeadRun {
  std::vector<float> value, lse, logits;
  std::vector<int32_t> id;
};

class Head {
 public:
  Head(int32_t vocabulary, int32_t hidden, std::vector<uint16_t> weights)
      : shape_{1, vocabulary, hidden}, weights_(std::move(weights)), packed_(gemm_bytes(shape_)) {
    const Guarded source(weights_);
    EXPECT_TRUE(clear_gemm(shape_, packed_.data(), nullptr).ok());
    EXPECT_TRUE(pack_gemm(shape_, packed_.data(), 0, 0, 1, {source.data(), hidden, 1, vocabulary}, nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  Head(int32_t vocabulary, int32_t hidden) : Head(vocabulary, hidden, random_host_matrix(vocabulary, hidden, 31)) {}

  int32_t hidden() const { return shape_.in; }

  HeadRun run(const std::vector<uint16_t>& x, int32_t k, bool logits, const Gpu& gpu,
              std::optional<GemmTile> tile = {}) const {
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(x.size()) / shape_.in);
    EXPECT_TRUE(check_head(shape_, k).ok());
    const Guarded in(x), value(int64_t{rows} * k * 4), id(int64_t{rows} * k * 4), lse(int64_t{rows} * 4);
    const Guarded all(logits ? int64_t{rows} * shape_.rows * 4 : 0), work(head_workspace_bytes(shape_, k));
    EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
    HeadArgs args;
    args.weights = {shape_, packed_.data()};
    args.x = in.data();
    args.rows = rows;
    args.k = k;
    args.top_value = static_cast<float*>(value.data());
    args.top_id = static_cast<int32_t*>(id.data());
    args.lse = static_cast<float*>(lse.data());
    args.logits = logits ? static_cast<float*>(all.data()) : nullptr;
    args.workspace = work.data();
    args.tile = tile;
    EXPECT_TRUE(run_head(gpu, args, nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    work.read<uint8_t>();
    return {value.read<float>(), lse.read<float>(), all.read<float>(), id.read<int32_t>()};
  }

  HeadRun reference(const std::vector<uint16_t>& x, int32_t k) const {
    const std::unique_ptr<Backend> ref = make_ref_backend();
    Linear linear;
    linear.weight =
        TensorView(const_cast<uint16_t*>(weights_.data()), DType::kBF16, {int64_t{shape_.rows}, int64_t{shape_.in}});
    linear.out = shape_.rows;
    linear.in = shape_.in;
    const auto prepared = ref->prepare(std::span<const Linear>(&linear, 1));
    EXPECT_TRUE(prepared.ok());
    std::vector<float> in = to_float(x);
    const int64_t rows = static_cast<int64_t>(x.size()) / shape_.in;
    HeadRun out{std::vector<float>(static_cast<size_t>(rows * k)), std::vector<float>(static_cast<size_t>(rows)),
                std::vector<float>(static_cast<size_t>(rows * shape_.rows)),
                std::vector<int32_t>(static_cast<size_t>(rows * k))};
    HeadResult result;
    result.top_value = TensorView(out.value.data(), DType::kF32, {rows, k});
    result.top_id = TensorView(out.id.data(), DType::kI32, {rows, k});
    result.lse = TensorView(out.lse.data(), DType::kF32, {rows});
    result.logits = TensorView(out.logits.data(), DType::kF32, {rows, shape_.rows});
    ref->head(result, TensorView(in.data(), DType::kF32, {rows, shape_.in}), **prepared);
    return out;
  }

 private:
  GemmShape shape_;
  std::vector<uint16_t> weights_;
  Guarded packed_;
};

// Ids and values as the reference orders these very logits; values and lse near the reference's own.
void expect_head(const Head& head, int32_t vocabulary, int32_t rows, int32_t k) {
  std::vector<uint16_t> x = random_host_matrix(rows, head.hidden(), static_cast<uint64_t>(rows + k));
  for (uint16_t& v : x) v = static_cast<uint16_t>(v + (8 << 7));  // logits of several units
  const HeadRun want = head.reference(x, k);
  for (const Gpu& gpu : gpu_configurations()) {
    SCOPED_TRACE(std::to_string(rows) + " rows, k " + std::to_string(k) + ", shared " +
                 std::to_string(gpu.shared_bytes));
    const HeadRun got = head.run(x, k, true, gpu), brief = head.run(x, k, false, gpu);
    EXPECT_LT(distance(got.logits, want.logits), 2e-5);
    EXPECT_LT(distance(got.value, want.value), 2e-5);
    EXPECT_LT(distance(got.lse, want.lse), 2e-6);
    for (int32_t row = 0; row < rows; ++row) {
      const std::span<const float> logits =
          std::span(got.logits).subspan(static_cast<size_t>(row * vocabulary), static_cast<size_t>(vocabulary));
      const std::vector<int32_t> order = ref::largest(logits, k);
      for (int32_t i = 0; i < k; ++i) {
        const auto at = static_cast<size_t>(row * k + i);
        ASSERT_EQ(got.id[at], order[static_cast<size_t>(i)]) << "row " << row << ", rank " << i;
        ASSERT_EQ(got.value[at], logits[static_cast<size_t>(order[static_cast<size_t>(i)])]);
      }
    }
    EXPECT_EQ(got.id, brief.id);
    EXPECT_EQ(got.value, brief.value);
    EXPECT_EQ(got.lse, brief.lse);
  }
}

TEST(HeadTiny, FewIds) {
  const Head head(100, 64);
  expect_head(head, 100, 3, 1);
  expect_head(head, 100, 2, 64);
}
TEST(Head, DemoVocabulary) {
  const Head head(4096, 256);
  for (const int32_t k : {1, 2, 16, 64}) expect_head(head, 4096, 9, k);
  expect_head(head, 4096, 130, 8);
}
TEST(Head, OddVocabulary) {
  const Head head(5003, 192);
  expect_head(head, 5003, 33, 40);
  expect_head(head, 5003, 1, 1);
}

// Row t picks column t of the weights, so logits are what the test writes there.
TEST(HeadTiny, TiesInfinitiesAndNan) {
  constexpr int32_t kVocabulary = 300, kHidden = 64;
  const auto logits = [](int32_t column) {
    std::vector<float> v(kVocabulary);
    for (int32_t id = 0; id < kVocabulary; ++id) {
      const int32_t mixed = id * 37 % 101;
      switch (column) {
        case 0: v[static_cast<size_t>(id)] = 1; break;                                 // all equal
        case 1: v[static_cast<size_t>(id)] = static_cast<float>(mixed % 4); break;     // long runs of ties
        case 2: v[static_cast<size_t>(id)] = mixed % 2 ? 0.f : -0.f; break;            // zeros of both signs
        case 3: v[static_cast<size_t>(id)] = mixed % 3 ? -0x1p100f : 0x1p100f; break;  // infinities: row is 2^100
        case 4: v[static_cast<size_t>(id)] = -0x1p100f; break;                         // nothing but −∞
        default: v[static_cast<size_t>(id)] = static_cast<float>(mixed - 50) / 4; break;
      }
    }
    return v;
  };
  for (const bool with_nan : {false, true}) {
    std::vector<uint16_t> weights(static_cast<size_t>(kVocabulary * kHidden));
    for (int32_t column = 0; column < 6; ++column) {
      const std::vector<float> v = logits(column);
      for (int32_t id = 0; id < kVocabulary; ++id)
        weights[static_cast<size_t>(id * kHidden + column)] = f32_to_bf16(v[static_cast<size_t>(id)]);
    }
    if (with_nan)  // of every row, as zero times NaN is NaN
      for (const int32_t id : {0, 7, 64, 65, 299}) weights[static_cast<size_t>(id * kHidden)] = 0x7fc0;
    const Head head(kVocabulary, kHidden, weights);
    std::vector<uint16_t> x(6 * kHidden);
    for (int32_t row = 0; row < 6; ++row)
      x[static_cast<size_t>(row * kHidden + row)] = f32_to_bf16(row == 3 || row == 4 ? 0x1p100f : 1.f);
    for (const int32_t k : {1, 16, 64}) {
      const HeadRun want = head.reference(x, k);
      for (const Gpu& gpu : gpu_configurations()) {
        const HeadRun got = head.run(x, k, false, gpu);
        EXPECT_EQ(got.id, want.id) << "k " << k << ", NaN " << with_nan;
        for (size_t i = 0; i < got.value.size(); ++i) EXPECT_TRUE(got.value[i] == want.value[i]) << i;
        for (size_t row = 0; row < 6; ++row) {
          if (with_nan)
            EXPECT_TRUE(std::isnan(got.lse[row])) << row;
          else if (std::isinf(want.lse[row]))
            EXPECT_EQ(got.lse[row], want.lse[row]) << row;
          else
            EXPECT_NEAR(got.lse[row], want.lse[row], 1e-5) << row;
        }
      }
    }
  }
}

// NaN comes after every number, by ascending id.
TEST(HeadTiny, NanIsRankedLast) {
  constexpr int32_t kVocabulary = 80, kHidden = 64;
  std::vector<uint16_t> weights(static_cast<size_t>(kVocabulary * kHidden), f32_to_bf16(-3));
  for (int32_t id = 0; id < kVocabulary; ++id)
    if (id % 3 != 0) weights[static_cast<size_t>(id * kHidden)] = 0x7fc0;
  const Head head(kVocabulary, kHidden, weights);
  const HeadRun got = head.run(random_host_matrix(1, kHidden, 1), 64, false, gpu_configurations()[0]);
  size_t at = 0;
  for (const bool number : {true, false})
    for (int32_t id = 0; id < kVocabulary && at < 64; ++id)
      if ((id % 3 == 0) == number) {
        EXPECT_EQ(std::isnan(got.value[at]), !number);
        EXPECT_EQ(got.id[at], id);
        ++at;
      }
}

TEST(Head, BitsDoNotDependOnTheBatch) {
  for (const int32_t vocabulary : {1000, 20480}) {
    const Head head(vocabulary, 256);
    const int32_t rows = 90, k = 16;
    const std::vector<uint16_t> all = random_host_matrix(rows, 256, 3);
    const std::vector<Gpu> gpus = gpu_configurations();
    const HeadRun base = head.run(all, k, true, gpus[0]);
    std::mt19937 random(1);
    for (const Gpu& gpu : gpus)
      for (const int32_t m : {1, 2, 9, 17, 40}) {
        std::vector<size_t> pick(static_cast<size_t>(m));
        std::generate(pick.begin(), pick.end(), [&] { return random() % rows; });
        std::vector<uint16_t> x;
        for (const size_t row : pick) x.insert(x.end(), &all[row * 256], &all[row * 256] + 256);
        for (const bool logits : {false, true}) {
          const HeadRun out = head.run(x, k, logits, gpu);
          for (size_t i = 0; i < pick.size(); ++i) {
            EXPECT_EQ(std::memcmp(&out.value[i * k], &base.value[pick[i] * k], k * 4), 0);
            EXPECT_EQ(std::memcmp(&out.id[i * k], &base.id[pick[i] * k], k * 4), 0);
            EXPECT_EQ(std::memcmp(&out.lse[i], &base.lse[pick[i]], 4), 0);
          }
        }
      }
  }
}

TEST(HeadPlan, RefusesWhatItCannotRank) {
  EXPECT_FALSE(check_head({1, 4096, 256}, 65).ok());
  EXPECT_FALSE(check_head({1, 32, 256}, 33).ok());
  EXPECT_FALSE(check_head({1, 32, 256}, 0).ok());
  EXPECT_TRUE(check_head({1, 32, 256}, 32).ok());
}

}  // namespace
}  // namespace ddtree::cuda
