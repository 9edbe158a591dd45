// The bounds that the other tests judge by: wide enough for a plain float32 loop, too narrow for common mistakes.
#include <gtest/gtest.h>

#include "base/bf16.h"
#include "expected.h"

namespace ddtree::ops {
namespace {

int64_t outside(const BoundedVector& want, const std::vector<double>& got) {
  int64_t count = 0;
  for (size_t i = 0; i < want.size(); ++i)
    count += std::fabs(got[i] - want[i].value) > want[i].error + kUnit * std::fabs(want[i].value);
  return count;
}

double to_bf16(double x) { return bf16_to_f32(f32_to_bf16(static_cast<float>(x))); }

// The demo's experts, its widest dense layer, and one sum at Kimi's width.
class Bounds : public testing::TestWithParam<std::pair<int64_t, int64_t>> {
 protected:
  void SetUp() override {
    WeightMaker maker(1);
    w_ = dense(maker.linear(GetParam().first, GetParam().second, kInt4));
    x_ = maker.random().normals(w_.in);
    want_ = multiply(w_, exact(x_).data());
  }
  std::vector<double> product(const std::function<double(double)>& weight, const std::function<double(double)>& input) {
    std::vector<double> y(w_.out);
    for (int64_t o = 0; o < w_.out; ++o)
      for (int64_t i = 0; i < w_.in; ++i) y[o] += weight(w_.row(o)[i]) * input(x_[i]);
    return y;
  }
  static double same(double x) { return x; }

  Dense w_;
  std::vector<float> x_;
  BoundedVector want_;
};

TEST_P(Bounds, HoldForALoopInFloat32) {
  std::vector<double> y(w_.out);
  for (int64_t o = 0; o < w_.out; ++o) {
    float sum = 0;
    for (int64_t i = 0; i < w_.in; ++i) sum += static_cast<float>(w_.row(o)[i]) * x_[i];
    y[o] = sum;
  }
  EXPECT_EQ(outside(want_, y), 0);
}

TEST_P(Bounds, RejectWeightsRoundedToBfloat16) { EXPECT_GT(outside(want_, product(to_bf16, same)), w_.out / 10); }

TEST_P(Bounds, RejectInputsRoundedToBfloat16) { EXPECT_GT(outside(want_, product(same, to_bf16)), w_.out / 10); }

TEST_P(Bounds, RejectAMissingTerm) {
  x_.back() = 0;
  EXPECT_GT(outside(want_, product(same, same)), w_.out / 2);
}

INSTANTIATE_TEST_SUITE_P(All, Bounds,
                         testing::Values(std::pair(128, 256), std::pair(256, 128), std::pair(256, 768),
                                         std::pair(64, 7168)));

}  // namespace
}  // namespace ddtree::ops
