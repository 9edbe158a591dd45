// The router on a GPU: choices against a restatement in double, ties, groups, formats of weights, rows in company.
#include "backend/cuda/moe/router.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "dense_support.h"

namespace ddtree::cuda {
namespace {

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

class Router {
 public:
  // weights [experts, hidden]; rounded to bf16 unless the shape is wide.
  Router(const RouterShape& shape, std::vector<float> weights, std::vector<float> bias)
      : shape_(shape), weights_(std::move(weights)), bias_(std::move(bias)), packed_(gemm_bytes(router_gemm(shape))) {
    EXPECT_TRUE(check_router_shape(shape).ok()) << check_router_shape(shape).error().message;
    std::vector<uint16_t> narrow;
    for (float& w : weights_) {
      narrow.push_back(f32_to_bf16(w));
      if (!shape.wide) w = bf16_to_f32(narrow.back());
    }
    const Guarded source = shape.wide ? Guarded(weights_) : Guarded(narrow), scratch(router_scratch_bytes(shape));
    EXPECT_TRUE(pack_router(shape, source.data(), packed_.data(), scratch.data(), nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  // x [rows, hidden] bf16 bits.
  Choice run(const std::vector<uint16_t>& x, int live = -1) const {
    const auto rows = static_cast<int32_t>(x.size() / static_cast<size_t>(shape_.hidden));
    const int64_t slots = static_cast<int64_t>(rows) * shape_.routing.top_k;
    const Guarded input(x), bias(bias_), ids(slots * 4), weights(slots * 4), work(router_workspace_bytes(shape_, rows)),
        live_rows(std::vector<int32_t>{live});
    EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
    const Status status =
        run_router(shape_, *current_gpu(),
                   {packed_.data(), bias_.empty() ? nullptr : static_cast<const float*>(bias.data()), input.data(),
                    static_cast<int32_t*>(ids.data()), static_cast<float*>(weights.data()), rows,
                    live < 0 ? nullptr : static_cast<const int32_t*>(live_rows.data()), work.data()},
                   nullptr);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    work.read<uint8_t>();
    return {ids.read<int32_t>(), weights.read<float>()};
  }

  // Ids ascending and weights of one row, by definition; the margin tells whether float32 may choose otherwise.
  Choice expected(const uint16_t* x, double& margin) const {
    const auto experts = static_cast<size_t>(shape_.experts), hidden = static_cast<size_t>(shape_.hidden);
    const MoeRouting& r = shape_.routing;
    std::vector<double> score(experts), biased;
    for (size_t e = 0; e < experts; ++e)
      for (size_t i = 0; i < hidden; ++i) score[e] += double{weights_[e * hidden + i]} * bf16_to_f32(x[i]);
    const double largest = *std::max_element(score.begin(), score.end());
    double sum = 0;
    for (double& s : score) {
      s = r.score == MoeRouting::Score::kSigmoid ? 1 / (1 + std::exp(-s)) : std::exp(s - largest);
      sum += s;
    }
    for (size_t e = 0; e < experts; ++e) {
      if (r.score == MoeRouting::Score::kSoftmax) score[e] /= sum;
      biased.push_back(score[e] + (bias_.empty() ? 0 : bias_[e]));
    }
    const size_t per_group = experts / static_cast<size_t>(r.groups);
    std::vector<double> group;
    for (size_t g = 0; g < static_cast<size_t>(r.groups); ++g) {
      std::vector<double> in(biased.begin() + static_cast<std::ptrdiff_t>(g * per_group),
                             biased.begin() + static_cast<std::ptrdiff_t>((g + 1) * per_group));
      std::sort(in.begin(), in.end(), std::greater<>());
      group.push_back(in[0] + (r.group_by_top2 && in.size() > 1 ? in[1] : 0));
    }
    margin = 1;
    const auto best = [&margin](const std::vector<double>& values, std::vector<int32_t> from, int32_t n) {
      std::stable_sort(from.begin(), from.end(), [&](int32_t a, int32_t b) {
        return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
      });
      if (static_cast<size_t>(n) < from.size())
        margin = std::min(margin, values[static_cast<size_t>(from[static_cast<size_t>(n) - 1])] -
                                      values[static_cast<size_t>(from[static_cast<size_t>(n)])]);
      from.resize(static_cast<size_t>(n));
      std::sort(from.begin(), from.end());
      return from;
    };
    std::vector<int32_t> groups(group.size()), candidates;
    std::iota(groups.begin(), groups.end(), 0);
    for (const int32_t g : best(group, groups, r.top_groups))
      for (size_t i = 0; i < per_group; ++i)
        candidates.push_back(g * static_cast<int32_t>(per_group + 0) + static_cast<int32_t>(i));
    Choice choice{best(biased, candidates, r.top_k), {}};
    double total = 0;
    for (const int32_t e : choice.ids) total += score[static_cast<size_t>(e)];
    for (const int32_t e : choice.ids)
      choice.weights.push_back(static_cast<float>(score[static_cast<size_t>(e)] / (r.normalise ? total : 1) * r.scale));
    return choice;
  }

 private:
  RouterShape shape_;
  std::vector<float> weights_, bias_;
  Guarded packed_;
};

RouterShape shape_of(int32_t experts, int32_t hidden, int32_t top_k) {
  RouterShape shape;
  shape.routing.top_k = top_k;
  shape.experts = experts;
  shape.hidden = hidden;
  return shape;
}

std::vector<float> random_floats(std::mt19937& random, int64_t count, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

std::vector<uint16_t> random_rows(std::mt19937& random, int64_t rows, int64_t hidden) {
  std::vector<uint16_t> x;
  for (const float v : random_floats(random, rows * hidden, 1)) x.push_back(f32_to_bf16(v));
  return x;
}

Router random_router(std::mt19937& random, const RouterShape& shape, bool with_bias = true) {
  const int64_t count = static_cast<int64_t>(shape.experts) * shape.hidden;
  return Router(shape, random_floats(random, count, 1.5f / std::sqrt(static_cast<float>(shape.hidden))),
                with_bias ? random_floats(random, shape.experts, 0.1f) : std::vector<float>());
}

// Sums of `hidden` products in float32 are off by some 1e-6, scores by a quarter of that.
constexpr double kMargin = 3e-6;

void expect_choices(const RouterShape& shape, int rows, uint32_t seed, bool with_bias = true) {
  SCOPED_TRACE(::testing::Message() << shape.experts << " experts, hidden " << shape.hidden << ", groups "
                                    << shape.routing.groups << ", wide " << shape.wide);
  std::mt19937 random(seed);
  const Router router = random_router(random, shape, with_bias);
  const std::vector<uint16_t> x = random_rows(random, rows, shape.hidden);
  const Choice got = router.run(x);
  const auto k = static_cast<size_t>(shape.routing.top_k);
  int undecided = 0;
  for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
    double margin = 0;
    const Choice want = router.expected(&x[row * static_cast<size_t>(shape.hidden)], margin);
    undecided += margin < kMargin;
    if (margin < kMargin) continue;
    EXPECT_EQ(std::vector<int32_t>(got.ids.begin() + static_cast<std::ptrdiff_t>(row * k),
                                   got.ids.begin() + static_cast<std::ptrdiff_t>((row + 1) * k)),
              want.ids)
        << "row " << row;
    for (size_t i = 0; i < k; ++i) EXPECT_NEAR(got.weights[row * k + i], want.weights[i], 1e-5 * want.weights[i]);
  }
  EXPECT_LE(undecided, rows / 20);
}

TEST(RouterTiny, Choices) {
  expect_choices(shape_of(32, 256, 4), 9, 1);
  RouterShape grouped = shape_of(16, 64, 3);
  grouped.routing.groups = 4, grouped.routing.top_groups = 2;
  expect_choices(grouped, 3, 2);
}

TEST(Router, ScoresGroupsAndFormats) {
  uint32_t seed = 10;
  for (const auto score : {MoeRouting::Score::kSigmoid, MoeRouting::Score::kSoftmax})
    for (const bool wide : {false, true})
      for (const auto& [experts, groups, top_groups, top_k] : {std::array{32, 1, 1, 4},
                                                               {384, 1, 1, 8},
                                                               {256, 8, 4, 8},
                                                               {160, 8, 3, 6},
                                                               {512, 64, 64, 16},
                                                               {500, 500, 9, 9},
                                                               {1, 1, 1, 1}}) {
        RouterShape shape = shape_of(experts, 192, top_k);
        shape.routing.score = score;
        shape.routing.groups = groups, shape.routing.top_groups = top_groups;
        shape.routing.group_by_top2 = seed % 2 == 0;
        shape.routing.normalise = seed % 3 != 0;
        shape.routing.scale = 2.827f;
        shape.wide = wide;
        expect_choices(shape, 40, seed, seed % 4 != 0);
        ++seed;
      }
}

TEST(Router, KimiShape) {
  RouterShape shape = shape_of(384, 7168, 8);
  shape.routing.scale = 2.827f;
  expect_choices(shape, 6, 40);
  shape.wide = true;
  expect_choices(shape, 3, 41);
}

TEST(RouterTiny, TiesGoToTheLowestIds) {
  const RouterShape shape = shape_of(96, 64, 8);
  std::vector<float> weights(96 * 64, 0.0f);
  for (size_t e = 40; e < 60; ++e) weights[e * 64] = 1;  // twenty equal ones above the rest
  const Router router(shape, weights, {});
  std::vector<uint16_t> x(2 * 64, 0);
  x[0] = f32_to_bf16(2);  // row 1: all equal
  const Choice got = router.run(x);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{40, 41, 42, 43, 44, 45, 46, 47, 0, 1, 2, 3, 4, 5, 6, 7}));
  for (const float w : got.weights) EXPECT_FLOAT_EQ(w, 0.125f);
}

TEST(RouterTiny, RowsThatAreNotLiveChooseNothing) {
  std::mt19937 random(3);
  const Router router = random_router(random, shape_of(32, 64, 4));
  const std::vector<uint16_t> x = random_rows(random, 7, 64);
  const Choice all = router.run(x), some = router.run(x, 5);
  for (size_t i = 0; i < all.ids.size(); ++i) {
    EXPECT_EQ(some.ids[i], i < 20 ? all.ids[i] : -1);
    EXPECT_EQ(some.weights[i], i < 20 ? all.weights[i] : 0);
  }
}

TEST(RouterTiny, NanStaysInItsRow) {
  std::mt19937 random(4);
  const Router router = random_router(random, shape_of(32, 64, 4));
  std::vector<uint16_t> x = random_rows(random, 3, 64);
  const Choice before = router.run(x);
  x[64 + 5] = 0x7fc0;
  const Choice got = router.run(x);
  for (size_t i = 0; i < 12; ++i) {
    if (i / 4 == 1)
      EXPECT_EQ(got.ids[i], static_cast<int32_t>(i - 4));  // all NaN: the lowest
    else
      EXPECT_EQ(got.ids[i], before.ids[i]);
  }
}

TEST(Router, BitsDoNotDependOnTheBatch) {
  std::mt19937 random(5);
  for (const bool wide : {false, true}) {
    RouterShape shape = shape_of(384, 1024, 8);
    shape.wide = wide;
    const Router router = random_router(random, shape);
    const std::vector<uint16_t> x = random_rows(random, 300, 1024);
    const Choice all = router.run(x);
    for (const int rows : {1, 9, 17, 40, 100}) {
      std::vector<uint16_t> some;
      std::vector<size_t> pick;
      for (int i = 0; i < rows; ++i) {
        pick.push_back(random() % 300);
        some.insert(some.end(), x.begin() + static_cast<std::ptrdiff_t>(pick.back() * 1024),
                    x.begin() + static_cast<std::ptrdiff_t>((pick.back() + 1) * 1024));
      }
      const Choice got = router.run(some);
      for (size_t i = 0; i < pick.size(); ++i) {
        EXPECT_EQ(std::memcmp(&got.ids[i * 8], &all.ids[pick[i] * 8], 32), 0);
        EXPECT_EQ(std::memcmp(&got.weights[i * 8], &all.weights[pick[i] * 8], 32), 0);
      }
    }
  }
}

TEST(Router, RefusesShapesByName) {
  const auto message = [](const RouterShape& shape) { return check_router_shape(shape).error().message; };
  EXPECT_NE(message(shape_of(513, 64, 4)).find("513 experts"), std::string::npos);
  EXPECT_NE(message(shape_of(32, 64, 17)).find("17 experts a row"), std::string::npos);
  EXPECT_NE(message(shape_of(32, 65, 4)).find("65 inputs"), std::string::npos);
  RouterShape shape = shape_of(32, 64, 4);
  shape.routing.groups = 5;
  EXPECT_NE(message(shape).find("5 groups"), std::string::npos);
  shape.routing.groups = 4, shape.routing.top_groups = 5;
  EXPECT_NE(message(shape).find("5 groups a row"), std::string::npos);
}

}  // namespace
}  // namespace ddtree::cuda
