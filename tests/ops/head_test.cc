// The head's order and sums at the edges. Logits are given as they are: x = (1, 0, …) and W's first column.
#include <gtest/gtest.h>

#include <limits>

#include "guarded.h"
#include "machines.h"
#include "row_run.h"

namespace ddtree::ops {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Top {
  std::vector<float> value;
  std::vector<int32_t> id;
  float lse;
};

Top run_head(Backend& backend, const std::vector<float>& logits, int64_t k) {
  constexpr int64_t kHidden = 8;
  const auto vocabulary = static_cast<int64_t>(logits.size());
  WeightMaker maker(1);
  std::vector<float> w(vocabulary * kHidden);
  for (int64_t v = 0; v < vocabulary; ++v) w[v * kHidden] = logits[v];
  const Linear linear = maker.plain(vocabulary, kHidden, w);
  const auto prepared = ready(backend.prepare(std::span<const Linear>(&linear, 1)));
  const Row row{0, {1, 0, 0, 0, 0, 0, 0, 0}, 0, 0};
  RowRun run(backend, std::span(&row, 1));
  HeadResult result{run.output(k), run.output(DType::kI32, k), run.output(1), {}};
  result.lse = TensorView(result.lse.data, DType::kF32, {1});
  backend.head(result, run.input(0, kHidden), *prepared);
  const std::vector<float> all = run.finish();
  Top top{{all.begin(), all.begin() + k}, {}, all[2 * k]};
  for (int64_t i = 0; i < k; ++i) top.id.push_back(static_cast<int32_t>(all[k + i]));
  return top;
}

TEST(Head, EqualLogitsGoToTheLowestId) {
  std::vector<float> logits(300, 1.0f);
  logits[7] = 2;
  logits[131] = 2;
  logits[299] = 2;
  for (const Machine& machine : machines()) {
    const Top top = run_head(*make(machine), logits, 6);
    EXPECT_EQ(top.id, (std::vector<int32_t>{7, 131, 299, 0, 1, 2})) << machine.name;
    EXPECT_EQ(top.value, (std::vector<float>{2, 2, 2, 1, 1, 1})) << machine.name;
  }
}

// ln(e¹ + e² + e³ + e⁴) = 4.4401897.
TEST(Head, LogSumExpDoesNotOverflow) {
  for (const Machine& machine : machines()) {
    EXPECT_NEAR(run_head(*make(machine), {1, 2, 3, 4}, 1).lse, 4.4401897, 1e-6) << machine.name;
    EXPECT_NEAR(run_head(*make(machine), {10001, 10002, 10003, 10004}, 1).lse, 10004.4401897, 1e-3) << machine.name;
    EXPECT_NEAR(run_head(*make(machine), {-10001, -10002}, 1).lse, -10001 + std::log1p(std::exp(-1)), 1e-3);
    EXPECT_NEAR(run_head(*make(machine), std::vector<float>(5000, 0), 1).lse, std::log(5000), 1e-5) << machine.name;
  }
}

TEST(Head, MinusInfinityIsANumberLikeOthers) {
  for (const Machine& machine : machines()) {
    const Top top = run_head(*make(machine), {-kInf, 3, -kInf, 5}, 4);
    EXPECT_EQ(top.id, (std::vector<int32_t>{3, 1, 0, 2})) << machine.name;
    EXPECT_NEAR(top.lse, 5 + std::log1p(std::exp(-2)), 1e-6) << machine.name;
  }
}

TEST(Head, NanEndsAndRanksLast) {
  for (int32_t at : {0, 3, 99}) {
    std::vector<float> logits(100);
    for (int32_t i = 0; i < 100; ++i) logits[i] = static_cast<float>((i * 37) % 100);
    logits[at] = kNaN;
    for (const Machine& machine : machines()) {
      const Top top = run_head(*make(machine), logits, 100);
      EXPECT_EQ(top.id.back(), at) << machine.name;
      for (int32_t i = 0; i + 2 < 100; ++i) EXPECT_GT(top.value[i], top.value[i + 1]) << machine.name;
    }
  }
  for (const Machine& machine : machines()) {
    const Top top = run_head(*make(machine), std::vector<float>(70, kNaN), 4);
    EXPECT_EQ(top.id, (std::vector<int32_t>{0, 1, 2, 3})) << machine.name;
  }
}

}  // namespace
}  // namespace ddtree::ops
