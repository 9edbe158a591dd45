// Attention's products on a GPU (MLA and GQA: projections, norms, rotation, cache writes, outputs) against the
// reference backend, and bit for bit against themselves in other batches.
#include <gtest/gtest.h>

#include <numbers>
#include <random>

#include "backend/cuda/gemm/gqa.h"
#include "backend/cuda/gemm/mla.h"
#include "backend/ref/ref_backend.h"
#include "gpu/dense_support.h"
#include "support/random_dense.h"

namespace ddtree::cuda {
namespace {

// A bf16 matrix on the host, on the device and as a source.
struct Matrix {
  int64_t out, in;
  std::vector<uint16_t> host;
  Guarded device;

  Matrix(int64_t out, int64_t in, uint64_t seed)
      : out(out), in(in), host(random_host_matrix(out, in, seed)), device(host) {}
  Linear linear() const {
    Linear l;
    if (out == 0) return l;
    l.weight = TensorView(const_cast<uint16_t*>(host.data()), DType::kBF16, {out, in});
    l.out = out;
    l.in = in;
    return l;
  }
};

// An fp32 vector near one.
struct Gain {
  std::vector<float> host;
  Guarded device;

  Gain(int64_t n, uint64_t seed) : host(make(n, seed)), device(host) {}
  TensorView view() const {
    return host.empty() ? TensorView()
                        : TensorView(const_cast<float*>(host.data()), DType::kF32, {static_cast<int64_t>(host.size())});
  }
  const float* data() const { return host.empty() ? nullptr : static_cast<const float*>(device.data()); }

 private:
  static std::vector<float> make(int64_t n, uint64_t seed) {
    std::vector<float> v = to_float(random_host_matrix(1, n, seed));
    for (float& g : v) g = 1 + 8 * g;
    return v;
  }
};

Rope make_rope(int32_t dim, bool interleaved) {
  Rope rope;
  rope.dim = dim;
  rope.interleaved = interleaved;
  rope.amplitude = 1.25f;
  for (int32_t i = 0; i < dim / 2; ++i) rope.inv_freq.push_back(std::pow(50000.0, -2.0 * i / dim));
  return rope;
}

// A rope's frequencies on the device.
struct DeviceRope {
  Guarded frequencies;
  GpuRope rope;

  explicit DeviceRope(const Rope& from) : frequencies(std::vector<float>(from.inv_freq.begin(), from.inv_freq.end())) {
    rope = {static_cast<const float*>(frequencies.data()), from.dim, from.amplitude, from.interleaved};
  }
};

struct Rows {
  std::vector<uint16_t> x;
  std::vector<int32_t> position, kv_row;
  int32_t count() const { return static_cast<int32_t>(position.size()); }
};

constexpr int32_t kCacheRows = 300;

Rows random_rows(int32_t rows, int32_t width, uint64_t seed) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  Rows r{random_host_matrix(rows, width, seed), {}, {}};
  for (uint16_t& v : r.x) v = static_cast<uint16_t>(v + (5 << 7));
  std::vector<int32_t> places(kCacheRows);
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), random);
  for (int32_t i = 0; i < rows; ++i) {
    r.position.push_back(i == 0 ? 262143 : static_cast<int32_t>(random() % 100000));
    r.kv_row.push_back(places[static_cast<size_t>(i)]);
  }
  return r;
}

Rows select(const Rows& from, const std::vector<size_t>& pick) {
  const size_t width = from.x.size() / from.position.size();
  Rows r;
  for (const size_t i : pick) {
    r.x.insert(r.x.end(), &from.x[i * width], &from.x[i * width] + width);
    r.position.push_back(from.position[i]);
    r.kv_row.push_back(from.kv_row[i]);
  }
  return r;
}

Batch batch_of(const Rows& rows) {
  Batch batch;
  batch.token.resize(rows.position.size());
  batch.position = rows.position;
  batch.kv_row = rows.kv_row;
  return batch;
}

struct Projected {
  std::vector<uint16_t> q, cache;  // of the rows given, not of the whole cache
};

std::vector<uint16_t> cached_rows(const std::vector<uint16_t>& cache, const Rows& rows, int64_t width) {
  std::vector<uint16_t> out;
  std::vector<bool> used(kCacheRows);
  for (const int32_t row : rows.kv_row) {
    out.insert(out.end(), cache.begin() + row * width, cache.begin() + (row + 1) * width);
    used[static_cast<size_t>(row)] = true;
  }
  for (size_t row = 0; row < used.size(); ++row)
    EXPECT_TRUE(used[row] || cache[row * static_cast<size_t>(width)] == 0xffff) << "cache row " << row;
  return out;
}

// --- MLA ---

struct Mla {
  MlaShape shape;
  Rope rope;
  Matrix q_a, q_b, kv_a, kv_b, o;
  Gain q_norm, kv_norm;
  DeviceRope device_rope;
  Guarded down, q_b_packed, k_up, v_up, o_packed;

  Mla(const MlaShape& s, bool interleaved)
      : shape(s),
        rope(make_rope(s.rope, interleaved)),
        q_a(s.q_lora, s.hidden, 1),
        q_b(int64_t{s.heads} * (s.nope + s.rope), mla_q_b(s).in, 2),
        kv_a(s.kv_lora + s.rope, s.hidden, 3),
        kv_b(int64_t{s.heads} * (s.nope + s.v), s.kv_lora, 4),
        o(s.hidden, int64_t{s.heads} * s.v, 5),
        q_norm(s.q_lora, 6),
        kv_norm(s.kv_lora, 7),
        device_rope(rope),
        down(gemm_bytes(mla_down(s))),
        q_b_packed(gemm_bytes(mla_q_b(s))),
        k_up(gemm_bytes(mla_k_up(s))),
        v_up(gemm_bytes(mla_v_up(s))),
        o_packed(gemm_bytes(mla_o(s))) {
    EXPECT_TRUE(check_mla_shape(s).ok());
    EXPECT_TRUE(
        pack_mla(s, interleaved,
                 {q_a.device.data(), q_b.device.data(), kv_a.device.data(), kv_b.device.data(), o.device.data()},
                 {down.data(), q_b_packed.data(), k_up.data(), v_up.data(), o_packed.data()}, nullptr)
            .ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }

  MlaWeights weights() const {
    return {down.data(),   q_b_packed.data(), k_up.data(), v_up.data(),     o_packed.data(),
            q_norm.data(), kv_norm.data(),    1e-6f,       device_rope.rope};
  }
  int64_t width() const { return shape.kv_lora + shape.rope; }

  Projected project(const Rows& rows, const Gpu& gpu) const {
    const Guarded x(rows.x), position(rows.position), kv_row(rows.kv_row), cache(kCacheRows * width() * 2);
    const Guarded q(int64_t{rows.count()} * shape.heads * width() * 2), work(mla_workspace_bytes(shape, rows.count()));
    EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
    const CacheRows to{static_cast<const int32_t*>(position.data()), static_cast<const int32_t*>(kv_row.data()),
                       cache.data(), width()};
    EXPECT_TRUE(
        run_mla_project(shape, gpu, weights(), {x.data(), q.data(), rows.count(), to, work.data()}, nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    work.read<uint8_t>();
    return {q.read<uint16_t>(), cached_rows(cache.read<uint16_t>(), rows, width())};
  }

  std::vector<uint16_t> output(const std::vector<uint16_t>& attended, const Gpu& gpu) const {
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(attended.size()) / shape.heads / shape.kv_lora);
    const Guarded in(attended), out(int64_t{rows} * shape.hidden * 2), work(mla_workspace_bytes(shape, rows));
    EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
    EXPECT_TRUE(run_mla_output(shape, gpu, weights(), {in.data(), out.data(), rows, work.data()}, nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    work.read<uint8_t>();
    return out.read<uint16_t>();
  }

  // Queries, then the rows' cache, then the output of `attended`.
  std::array<std::vector<float>, 3> reference(const Rows& rows, const std::vector<uint16_t>& attended) const {
    const std::unique_ptr<Backend> ref = make_ref_backend();
    MlaSource source{shape.heads,   shape.kv_lora,  shape.nope,    shape.rope,    shape.v,
                     q_a.linear(),  q_b.linear(),   kv_a.linear(), kv_b.linear(), o.linear(),
                     q_norm.view(), kv_norm.view(), 1e-6f,         rope};
    const auto prepared = ref->prepare(source);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    const Batch batch = batch_of(rows);
    ref->stage(batch);
    std::vector<float> x = to_float(rows.x), in = to_float(attended);
    std::vector<float> q(static_cast<size_t>(rows.count() * shape.heads * width()));
    std::vector<float> cache(static_cast<size_t>(kCacheRows * width())), picked;
    std::vector<float> out(static_cast<size_t>(rows.count() * shape.hidden));
    ref->mla_project(TensorView(q.data(), DType::kF32, {rows.count(), shape.heads, width()}),
                     TensorView(x.data(), DType::kF32, {rows.count(), shape.hidden}), **prepared,
                     TensorView(cache.data(), DType::kF32, {kCacheRows, width()}));
    ref->mla_output(TensorView(out.data(), DType::kF32, {rows.count(), shape.hidden}),
                    TensorView(in.data(), DType::kF32, {rows.count(), shape.heads, shape.kv_lora}), **prepared);
    for (const int32_t row : rows.kv_row)
      picked.insert(picked.end(), cache.begin() + row * width(), cache.begin() + (row + 1) * width());
    return {q, picked, out};
  }
};

// Roundings to bf16 on the way: low query, its nope part, q: 3; the cache: 1; values and output: 2.
void expect_mla(const MlaShape& shape, bool interleaved, int32_t rows) {
  const Mla mla(shape, interleaved);
  const Rows batch = random_rows(rows, shape.hidden, static_cast<uint64_t>(rows));
  const std::vector<uint16_t> attended = random_host_matrix(rows, int64_t{shape.heads} * shape.kv_lora, 9);
  const auto want = mla.reference(batch, attended);
  for (const Gpu& gpu : gpu_configurations()) {
    const Projected got = mla.project(batch, gpu);
    EXPECT_LT(distance(to_float(got.q), want[0]), rounding_error(3));
    EXPECT_LT(distance(to_float(got.cache), want[1]), rounding_error(1));
    EXPECT_LT(distance(to_float(mla.output(attended, gpu)), want[2]), rounding_error(2));
  }
}

constexpr MlaShape kDemoMla{256, 4, 128, 512, 128, 64, 128};

TEST(ProjectionTiny, Mla) { expect_mla({128, 1, 64, 64, 64, 32, 64}, true, 3); }
TEST(Projection, MlaOfTheDemo) {
  expect_mla(kDemoMla, true, 1);
  expect_mla(kDemoMla, true, 37);
}
TEST(Projection, MlaOtherwise) {
  expect_mla({256, 3, 0, 128, 64, 64, 192}, true, 9);     // no q_a
  expect_mla({320, 2, 192, 128, 128, 48, 64}, false, 5);  // rotated halves, heads of odd blocks
}
TEST(Projection, MlaOfAKimiRank) { expect_mla({7168, 8, 1536, 512, 128, 64, 128}, true, 2); }

TEST(Projection, MlaBitsDoNotDependOnTheBatch) {
  const Mla mla(kDemoMla, true);
  const Rows all = random_rows(150, 256, 4);
  const std::vector<Gpu> gpus = gpu_configurations();
  const Projected base = mla.project(all, gpus[0]);
  const size_t q_width = base.q.size() / 150, kv_width = base.cache.size() / 150;
  for (const Gpu& gpu : gpus)
    for (const std::vector<size_t>& pick :
         {std::vector<size_t>{0}, {149}, {5, 3, 77}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 140, 141, 20, 30, 40, 50, 60, 70}}) {
      const Projected got = mla.project(select(all, pick), gpu);
      for (size_t i = 0; i < pick.size(); ++i) {
        EXPECT_EQ(std::memcmp(&got.q[i * q_width], &base.q[pick[i] * q_width], q_width * 2), 0);
        EXPECT_EQ(std::memcmp(&got.cache[i * kv_width], &base.cache[pick[i] * kv_width], kv_width * 2), 0);
      }
    }
}

// A row without a place in the cache writes nowhere; its queries are as ever.
TEST(ProjectionTiny, RowsWithoutAPlace) {
  const Mla mla({128, 1, 64, 64, 64, 32, 64}, true);
  const Gpu gpu = gpu_configurations()[0];
  Rows rows = random_rows(2, 128, 5);
  const Projected base = mla.project(rows, gpu);
  const Guarded x(rows.x), position(rows.position), kv_row(std::vector<int32_t>{-1, -1}), cache(kCacheRows * 96 * 2);
  const Guarded q(static_cast<int64_t>(base.q.size()) * 2), work(mla_workspace_bytes(mla.shape, 2));
  EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
  const CacheRows to{static_cast<const int32_t*>(position.data()), static_cast<const int32_t*>(kv_row.data()),
                     cache.data(), 96};
  EXPECT_TRUE(run_mla_project(mla.shape, gpu, mla.weights(), {x.data(), q.data(), 2, to, work.data()}, nullptr).ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(q.read<uint16_t>(), base.q);
  const std::vector<uint16_t> untouched = cache.read<uint16_t>();
  EXPECT_TRUE(std::all_of(untouched.begin(), untouched.end(), [](uint16_t v) { return v == 0xffff; }));
}

// --- GQA ---

struct Gqa {
  GqaShape shape;
  Rope rope;
  Matrix q, k, v, o;
  Gain q_norm, k_norm;
  DeviceRope device_rope;
  Guarded q_packed, kv_packed, o_packed;

  Gqa(const GqaShape& s, bool norms, int32_t rope_dim, bool interleaved)
      : shape(s),
        rope(make_rope(rope_dim, interleaved)),
        q(int64_t{s.heads} * s.head_dim, s.hidden, 1),
        k(int64_t{s.kv_heads} * s.head_dim, s.hidden, 2),
        v(int64_t{s.kv_heads} * s.head_dim, s.hidden, 3),
        o(s.hidden, int64_t{s.heads} * s.head_dim, 4),
        q_norm(norms ? s.head_dim : 0, 5),
        k_norm(norms ? s.head_dim : 0, 6),
        device_rope(rope),
        q_packed(gemm_bytes(gqa_q(s))),
        kv_packed(gemm_bytes(gqa_kv(s))),
        o_packed(gemm_bytes(gqa_o(s))) {
    EXPECT_TRUE(check_gqa_shape(s).ok());
    EXPECT_TRUE(pack_gqa(s, {q.device.data(), k.device.data(), v.device.data(), o.device.data()},
                         {q_packed.data(), kv_packed.data(), o_packed.data()}, nullptr)
                    .ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  GqaWeights weights() const {
    return {q_packed.data(), kv_packed.data(), o_packed.data(), q_norm.data(), k_norm.data(), 1e-6f, device_rope.rope};
  }
  int64_t width() const { return int64_t{2} * shape.kv_heads * shape.head_dim; }
  int64_t query_width() const { return int64_t{shape.heads} * shape.head_dim; }

  Projected project(const Rows& rows, const Gpu& gpu, bool queries) const {
    const Guarded x(rows.x), position(rows.position), kv_row(rows.kv_row), cache(kCacheRows * width() * 2);
    const Guarded out(queries ? rows.count() * query_width() * 2 : 0), work(gqa_workspace_bytes(shape, rows.count()));
    EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
    const CacheRows to{static_cast<const int32_t*>(position.data()), static_cast<const int32_t*>(kv_row.data()),
                       cache.data(), width()};
    EXPECT_TRUE(run_gqa_project(shape, gpu, weights(),
                                {x.data(), queries ? out.data() : nullptr, rows.count(), to, work.data()}, nullptr)
                    .ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    work.read<uint8_t>();
    return {out.read<uint16_t>(), cached_rows(cache.read<uint16_t>(), rows, width())};
  }

  std::vector<uint16_t> output(const std::vector<uint16_t>& attended, const Gpu& gpu) const {
    const auto rows = static_cast<int32_t>(static_cast<int64_t>(attended.size()) / query_width());
    const Guarded in(attended), out(int64_t{rows} * shape.hidden * 2), work(gqa_workspace_bytes(shape, rows));
    EXPECT_TRUE(init_gemm_workspace(work.data(), nullptr).ok());
    EXPECT_TRUE(run_gqa_output(shape, gpu, weights(), {in.data(), out.data(), rows, work.data()}, nullptr).ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return out.read<uint16_t>();
  }

  std::array<std::vector<float>, 3> reference(const Rows& rows, const std::vector<uint16_t>& attended) const {
    const std::unique_ptr<Backend> ref = make_ref_backend();
    GqaSource source{shape.heads, shape.kv_heads, shape.head_dim, q.linear(), k.linear(), v.linear(),
                     o.linear(),  q_norm.view(),  k_norm.view(),  1e-6f,      rope};
    const auto prepared = ref->prepare(source);
    EXPECT_TRUE(prepared.ok()) << prepared.error().message;
    const Batch batch = batch_of(rows);
    ref->stage(batch);
    std::vector<float> x = to_float(rows.x), in = to_float(attended), picked;
    std::vector<float> queries(static_cast<size_t>(rows.count() * query_width()));
    std::vector<float> cache(static_cast<size_t>(kCacheRows * width()));
    std::vector<float> out(static_cast<size_t>(rows.count() * shape.hidden));
    ref->gqa_project(TensorView(queries.data(), DType::kF32, {rows.count(), shape.heads, shape.head_dim}),
                     TensorView(x.data(), DType::kF32, {rows.count(), shape.hidden}), **prepared,
                     TensorView(cache.data(), DType::kF32, {kCacheRows, width()}));
    ref->gqa_output(TensorView(out.data(), DType::kF32, {rows.count(), shape.hidden}),
                    TensorView(in.data(), DType::kF32, {rows.count(), shape.heads, shape.head_dim}), **prepared);
    for (const int32_t row : rows.kv_row)
      picked.insert(picked.end(), cache.begin() + row * width(), cache.begin() + (row + 1) * width());
    return {queries, picked, out};
  }
};

// One rounding everywhere: sums, norms and rotation are fp32.
void expect_gqa(const GqaShape& shape, bool norms, int32_t rope_dim, bool interleaved, int32_t rows) {
  const Gqa gqa(shape, norms, rope_dim, interleaved);
  const Rows batch = random_rows(rows, shape.hidden, static_cast<uint64_t>(rows));
  const std::vector<uint16_t> attended = random_host_matrix(rows, gqa.query_width(), 9);
  const auto want = gqa.reference(batch, attended);
  for (const Gpu& gpu : gpu_configurations()) {
    const Projected got = gqa.project(batch, gpu, true);
    EXPECT_LT(distance(to_float(got.q), want[0]), rounding_error(1));
    EXPECT_LT(distance(to_float(got.cache), want[1]), rounding_error(1));
    EXPECT_EQ(gqa.project(batch, gpu, false).cache, got.cache) << "keys and values alone";
    EXPECT_LT(distance(to_float(gqa.output(attended, gpu)), want[2]), rounding_error(1));
  }
}

TEST(ProjectionTiny, Gqa) { expect_gqa({64, 2, 1, 32}, true, 32, false, 3); }
TEST(Projection, GqaOfTheDrafters) {
  expect_gqa({256, 4, 2, 64}, true, 64, false, 9);
  expect_gqa({512, 64, 8, 128}, true, 128, false, 8);
}
TEST(Projection, GqaOtherwise) {
  expect_gqa({192, 6, 3, 64}, false, 64, true, 5);   // no norms, interleaved pairs
  expect_gqa({256, 4, 2, 80}, true, 40, false, 33);  // half of a head is rotated
}

}  // namespace
}  // namespace ddtree::cuda
