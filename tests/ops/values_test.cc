// Vectors computed by hand: INT4 words, rotation, and MLA's absorption.
#include <gtest/gtest.h>

#include <array>

#include "guarded.h"
#include "machines.h"
#include "row_run.h"

namespace ddtree::ops {
namespace {

// W · x for the rows of the identity: the columns of W.
std::vector<float> columns(Backend& backend, const Linear& w) {
  const auto prepared = ready(backend.prepare(std::span<const Linear>(&w, 1)));
  std::vector<Row> rows;
  for (int64_t i = 0; i < w.in; ++i) {
    rows.push_back({static_cast<int32_t>(i), std::vector<float>(w.in), 0, 0});
    rows.back().x[i] = 1;
  }
  RowRun run(backend, rows);
  const TensorView out = run.output(w.out);
  backend.linear(out, run.input(0, w.in), *prepared);
  return run.finish();
}

TEST(Int4, NibblesCountFromMinusEightLowestBitsFirst) {
  WeightMaker maker(1);
  const Linear w = maker.packed(2, 8, {0x76543210u, 0xFEDCBA98u}, {1, 1}, {DType::kBF16, 8});
  for (const Machine& machine : machines()) {
    const std::vector<float> got = columns(*make(machine), w);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(got[2 * i], -8 + i) << machine.name;
      EXPECT_EQ(got[2 * i + 1], i) << machine.name;
    }
  }
}

// 1 + 2⁻⁷ is a bfloat16 and 7 · (1 + 2⁻⁷) is not: the weight must stay unrounded. Groups of 16 over 32 inputs.
TEST(Int4, WeightIsTheExactProductWithItsGroupsScale) {
  WeightMaker maker(1);
  const std::vector<uint32_t> words = {0xFFFFFFFFu, 0x00000000u, 0x89ABCDEFu, 0x01234567u};
  const float scale = 1 + 0x1p-7f;
  const std::array<float, 8> down = {7, 6, 5, 4, 3, 2, 1, 0};
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const Linear w = maker.packed(1, 32, words, {scale, -0.5f}, {dtype, 16});
    for (const Machine& machine : machines()) {
      const std::vector<float> got = columns(*make(machine), w);
      for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(got[i], 7 * scale) << machine.name;
        EXPECT_EQ(got[8 + i], -8 * scale) << machine.name;
        EXPECT_EQ(got[16 + i], -0.5f * down[i]) << machine.name;
        EXPECT_EQ(got[24 + i], -0.5f * (down[i] - 8)) << machine.name;
      }
    }
  }
}

// Queries of one head whose projection is the identity: the rotation alone.
std::vector<float> rotated(Backend& backend, const Rope& rope, int32_t head_dim, int32_t position,
                           const std::vector<float>& x) {
  WeightMaker maker(1);
  std::vector<float> identity(head_dim * head_dim);
  for (int32_t i = 0; i < head_dim; ++i) identity[i * head_dim + i] = 1;
  GqaSource source{1, 1, head_dim, {}, {}, {}, {}, {}, {}, 1e-6f, rope};
  source.q = source.k = source.v = source.o = maker.plain(head_dim, head_dim, identity);
  const auto w = ready(backend.prepare(source));
  const Row row{0, x, 0, position};
  RowRun run(backend, std::span(&row, 1));
  const TensorView q = run.output({1, head_dim});
  const TensorView cache = run.cache(2 * head_dim);
  backend.gqa_project(q, run.input(0, head_dim), *w, cache);
  const std::vector<float> all = run.finish();
  for (int32_t i = 0; i < head_dim; ++i) {
    EXPECT_EQ(all[head_dim + i], all[i]) << "keys turn as queries do";
    EXPECT_EQ(all[2 * head_dim + i], x[i]) << "values do not turn";
  }
  return {all.begin(), all.begin() + head_dim};
}

// cos 1 = 0.5403023, sin 1 = 0.8414710; cos 0.5 = 0.8775826, sin 0.5 = 0.4794255.
TEST(Rope, PairsNeighboursOrHalves) {
  const Rope neighbours{4, true, 1, {1, 0.5}};
  const Rope halves{4, false, 1, {1, 0.5}};
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    const std::vector<float> a = rotated(*backend, neighbours, 4, 1, {1, 0, 0, 1});
    const std::vector<float> b = rotated(*backend, halves, 4, 1, {1, 0, 0, 1});
    const std::array<double, 4> want_a = {0.5403023, 0.8414710, -0.4794255, 0.8775826};
    const std::array<double, 4> want_b = {0.5403023, -0.4794255, 0.8414710, 0.8775826};
    for (int i = 0; i < 4; ++i) {
      EXPECT_NEAR(a[i], want_a[i], 1e-7) << machine.name;
      EXPECT_NEAR(b[i], want_b[i], 1e-7) << machine.name;
    }
  }
}

TEST(Rope, LeavesTheRestOfAHeadAlone) {
  for (const Machine& machine : machines()) {
    const std::vector<float> got = rotated(*make(machine), {2, false, 1, {1}}, 6, 3, {1, 2, 3, 4, 5, 6});
    for (int i = 2; i < 6; ++i) EXPECT_EQ(got[i], i + 1) << machine.name;
  }
}

TEST(Rope, AmplitudeScalesTheRotatedValues) {
  for (const Machine& machine : machines()) {
    const std::vector<float> got = rotated(*make(machine), {2, true, 1.25f, {1}}, 2, 0, {3, -4});
    EXPECT_EQ(got, (std::vector<float>{3.75f, -5})) << machine.name;
  }
}

// 262143 · 0.7131110764… = 186937.0… needs more digits than float32 has: the angle is the rounded product of the
// rounded frequency, 1/64 apart from its neighbours, and the turn is that angle's, not the exact one's.
TEST(Rope, AngleIsAFloat32Product) {
  const double frequency = std::pow(50000.0, -2.0 / 64);
  const double angle = static_cast<float>(262143.0 * static_cast<float>(frequency));
  ASSERT_GT(std::fabs(angle - 262143 * frequency), 1e-3);
  for (const Machine& machine : machines()) {
    const std::vector<float> got = rotated(*make(machine), {2, true, 1, {frequency}}, 2, 262143, {1, 0});
    EXPECT_NEAR(got[0], std::cos(angle), 1.2e-7) << machine.name;
    EXPECT_NEAR(got[1], std::sin(angle), 1.2e-7) << machine.name;
  }
}

// The scores and outputs of attention as it is defined, with keys and values expanded from the latents, in double.
class Unabsorbed {
 public:
  explicit Unabsorbed(const MlaSource& source) : s_(source) {}

  std::vector<double> attend(const std::vector<Row>& rows, int32_t last, double scale) const {
    const std::vector<double> q = query(rows[last]);
    std::vector<double> concatenated;
    for (int32_t h = 0; h < s_.heads; ++h) {
      std::vector<double> value(s_.v);
      double sum = 0;
      for (int32_t t = 0; t <= last; ++t) {
        const std::vector<double> c = latent(rows[t]);
        double score = 0;
        for (int32_t i = 0; i < s_.nope; ++i) score += q[at(h, i)] * expand(h, i, c);
        for (int32_t i = 0; i < s_.rope_dim; ++i) score += q[at(h, s_.nope + i)] * c[s_.kv_lora + i];
        const double weight = std::exp(scale * score);
        sum += weight;
        for (int32_t i = 0; i < s_.v; ++i) value[i] += weight * expand(h, s_.nope + i, c);
      }
      for (double v : value) concatenated.push_back(v / sum);
    }
    return product(s_.o, concatenated);
  }

 private:
  int32_t at(int32_t h, int32_t i) const { return h * (s_.nope + s_.rope_dim) + i; }

  template <class X>
  static std::vector<double> product(const Linear& w, const X& x) {
    std::vector<double> y(w.out);
    for (int64_t o = 0; o < w.out; ++o)
      for (int64_t i = 0; i < w.in; ++i) y[o] += weight_value(w, o, i) * x[i];
    return y;
  }
  double expand(int32_t h, int32_t i, const std::vector<double>& c) const {  // row i of head h of kv_b, times c
    double y = 0;
    for (int32_t j = 0; j < s_.kv_lora; ++j) y += weight_value(s_.kv_b, h * (s_.nope + s_.v) + i, j) * c[j];
    return y;
  }
  void norm(double* x, const TensorView& gain) const {
    double square = 0;
    for (int64_t i = 0; i < gain.dim[0]; ++i) square += x[i] * x[i];
    for (int64_t i = 0; i < gain.dim[0]; ++i)
      x[i] *= vector_value(gain, i) / std::sqrt(square / static_cast<double>(gain.dim[0]) + s_.norm_eps);
  }
  void turn(double* x, int32_t position) const {  // complex multiplication of neighbouring pairs
    for (int32_t i = 0; i < s_.rope_dim; i += 2) {
      const double angle = static_cast<float>(position) * static_cast<float>(s_.rope.inv_freq[i / 2]);
      const double re = x[i], im = x[i + 1];
      x[i] = re * std::cos(angle) - im * std::sin(angle);
      x[i + 1] = re * std::sin(angle) + im * std::cos(angle);
    }
  }
  std::vector<double> query(const Row& row) const {
    std::vector<double> low = product(s_.q_a, row.x);
    norm(low.data(), s_.q_a_norm);
    std::vector<double> q = product(s_.q_b, low);
    for (int32_t h = 0; h < s_.heads; ++h) turn(q.data() + at(h, s_.nope), row.position);
    return q;
  }
  std::vector<double> latent(const Row& row) const {
    std::vector<double> c = product(s_.kv_a, row.x);
    norm(c.data(), s_.kv_a_norm);
    turn(c.data() + s_.kv_lora, row.position);
    return c;
  }

  const MlaSource& s_;
};

TEST(Mla, AbsorbedEqualsUnabsorbed) {
  constexpr int32_t kRows = 6;
  WeightMaker maker(3);
  const MlaSource source = make_mla(maker, {64, 2, 32, 48, 16, 8, 24, true, 1, kF32});
  const double scale = 0.2;
  std::vector<Row> rows;
  for (int32_t t = 0; t < kRows; ++t) rows.push_back({t, maker.random().normals(64), 0, t + 4000});

  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    const auto w = ready(backend->prepare(source));
    Batch batch{.token = std::vector<int32_t>(kRows),
                .position = {},
                .kv_row = {},
                .ancestors = {},
                .segments = {},
                .head_row = {}};
    for (int32_t t = 0; t < kRows; ++t) {
      batch.position.push_back(rows[t].position);
      batch.kv_row.push_back(t);
    }
    batch.segments.push_back({.first_row = 0, .rows = kRows, .pages = {}});
    std::vector<float> inputs;
    for (const Row& row : rows) inputs.insert(inputs.end(), row.x.begin(), row.x.end());
    const Guarded x(*backend, {kRows, 64}, inputs), q(*backend, DType::kF32, {kRows, 2, 56});
    const Guarded cache(*backend, DType::kF32, {kRows, 56}), mid(*backend, DType::kF32, {kRows, 2, 48});
    const Guarded out(*backend, DType::kF32, {kRows, 64});
    backend->stage(batch);
    backend->mla_project(q.view(), x.view(), *w, cache.view());
    backend->attend(mid.view(), q.view(), cache.view(),
                    {AttendSpec::Mask::kTree, static_cast<float>(scale), 2, 1, 56, 48, 0});
    backend->mla_output(out.view(), mid.view(), *w);
    ASSERT_TRUE(backend->finish().ok());
    // Outputs are of order 1 and every intermediate is stored in float32 with sums of at most 64 terms: a few 10⁻⁷
    // each.
    for (int32_t t = 0; t < kRows; ++t) {
      const std::vector<double> want = Unabsorbed(source).attend(rows, t, scale);
      for (int32_t i = 0; i < 64; ++i) EXPECT_NEAR(out.view().row<float>(t)[i], want[i], 3e-6) << machine.name;
    }
  }
}

}  // namespace
}  // namespace ddtree::ops
