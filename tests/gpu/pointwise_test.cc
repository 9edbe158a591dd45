// Norms, sums, embedding and gathering on a GPU, against the reference backend.
#include "backend/cuda/pointwise/rows.h"

#include <gtest/gtest.h>

#include "backend/ref/ref_backend.h"
#include "gpu/dense_support.h"
#include "support/random_dense.h"

namespace ddtree::cuda {
namespace {

TensorView view(std::vector<float>& values, int64_t rows, int64_t width) {
  return TensorView(values.data(), DType::kF32, {rows, width});
}

std::vector<float> random_gain(int32_t width) {
  std::vector<float> gain = to_float(random_host_matrix(1, width, 77));
  for (float& g : gain) g = 1 + 8 * g;
  return gain;
}

struct NormRun {
  std::vector<uint16_t> out, residual;
};

NormRun add_rms_norm(const RowShape& shape, const std::vector<uint16_t>& residual, const std::vector<uint16_t>& delta,
                     const std::vector<float>& gain) {
  const Guarded r(residual), d(delta), g(gain), out(static_cast<int64_t>(residual.size()) * 2);
  EXPECT_TRUE(check_row_width(shape.width, "a test").ok());
  EXPECT_TRUE(
      run_add_rms_norm(shape, out.data(), r.data(), d.data(), static_cast<const float*>(g.data()), 1e-5f, nullptr)
          .ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return {out.read<uint16_t>(), r.read<uint16_t>()};
}

std::vector<uint16_t> rms_norm(const RowShape& shape, const std::vector<uint16_t>& x, const std::vector<float>& gain) {
  const Guarded in(x), g(gain), out(static_cast<int64_t>(x.size()) * 2);
  EXPECT_TRUE(run_rms_norm(shape, out.data(), in.data(), static_cast<const float*>(g.data()), 1e-5f, nullptr).ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  return out.read<uint16_t>();
}

void expect_norms(int32_t rows, int32_t width) {
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(width));
  const RowShape shape{rows, width};
  const std::vector<uint16_t> residual = random_host_matrix(rows, width, 1), delta = random_host_matrix(rows, width, 2);
  std::vector<float> gain = random_gain(width);
  const NormRun got = add_rms_norm(shape, residual, delta, gain);

  const std::unique_ptr<Backend> ref = make_ref_backend();
  std::vector<float> r = to_float(residual), d = to_float(delta), normed(r.size());
  ref->add(view(r, rows, width), view(d, rows, width));
  for (float& v : r) v = bf16_to_f32(f32_to_bf16(v));
  EXPECT_EQ(to_float(got.residual), r) << "a sum of two bf16 is rounded once";
  ref->rms_norm(view(normed, rows, width), view(r, rows, width), TensorView(gain.data(), DType::kF32, {width}), 1e-5f);
  EXPECT_LT(distance(to_float(got.out), normed), rounding_error(1));
  EXPECT_EQ(rms_norm(shape, got.residual, gain), got.out) << "norms of the same rows";
}

TEST(PointwiseTiny, Norms) {
  expect_norms(3, 8);
  expect_norms(2, 264);
}
TEST(Pointwise, Norms) {
  expect_norms(9, 256);
  expect_norms(33, 7168);
  expect_norms(1, 16384);
}

TEST(Pointwise, ARowAloneHasTheSameBits) {
  const int32_t width = 7168;
  const std::vector<uint16_t> residual = random_host_matrix(40, width, 1), delta = random_host_matrix(40, width, 2);
  const std::vector<float> gain = random_gain(width);
  const NormRun all = add_rms_norm({40, width}, residual, delta, gain);
  const auto row = [&](const std::vector<uint16_t>& m, int64_t i) {
    return std::vector<uint16_t>(m.begin() + i * width, m.begin() + (i + 1) * width);
  };
  for (const int64_t i : {0, 17, 39})
    EXPECT_EQ(add_rms_norm({1, width}, row(residual, i), row(delta, i), gain).out, row(all.out, i));
}

TEST(PointwiseTiny, AddAndGather) {
  const std::vector<uint16_t> x = random_host_matrix(7, 72, 1), y = random_host_matrix(7, 72, 2);
  const Guarded sum(x), delta(y), source(x);
  EXPECT_TRUE(run_add({7, 72}, sum.data(), delta.data(), nullptr).ok());
  const std::vector<int32_t> rows = {6, 0, 3, 3};
  const Guarded list(rows), gathered(4 * 72 * 2);
  EXPECT_TRUE(
      run_gather_rows({4, 72}, gathered.data(), source.data(), static_cast<const int32_t*>(list.data()), nullptr).ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint16_t> got_sum = sum.read<uint16_t>(), got = gathered.read<uint16_t>();
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got_sum[i], f32_to_bf16(bf16_to_f32(x[i]) + bf16_to_f32(y[i])));
  for (size_t i = 0; i < rows.size(); ++i)
    EXPECT_EQ(std::memcmp(&got[i * 72], &x[static_cast<size_t>(rows[i]) * 72], 144), 0);
}

TEST(PointwiseTiny, Embed) {
  const GemmShape shape{1, 100, 192};
  const std::vector<uint16_t> table = random_host_matrix(100, 192, 5);
  const Guarded source(table), packed(gemm_bytes(shape));
  EXPECT_TRUE(clear_gemm(shape, packed.data(), nullptr).ok());
  EXPECT_TRUE(pack_gemm(shape, packed.data(), 0, 0, 1, {source.data(), 192, 1, 100}, nullptr).ok());
  const std::vector<int32_t> tokens = {99, 0, 63, 64, 100, -1};
  const Guarded list(tokens), out(static_cast<int64_t>(tokens.size()) * 192 * 2);
  EXPECT_TRUE(run_embed(static_cast<int32_t>(tokens.size()), out.data(), {shape, packed.data()},
                        static_cast<const int32_t*>(list.data()), nullptr)
                  .ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<uint16_t> got = out.read<uint16_t>();
  for (size_t i = 0; i < tokens.size(); ++i)
    for (size_t k = 0; k < 192; ++k)
      ASSERT_EQ(got[i * 192 + k], i < 4 ? table[static_cast<size_t>(tokens[i]) * 192 + k] : 0) << i << ", " << k;
}

TEST(PointwisePlan, RefusesWidthsItCannotHold) {
  EXPECT_FALSE(check_row_width(12, "norm").ok());
  EXPECT_FALSE(check_row_width(16392, "norm").ok());
  EXPECT_TRUE(check_row_width(7168, "norm").ok());
}

}  // namespace
}  // namespace ddtree::cuda
