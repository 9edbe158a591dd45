// Memory, row copies, and the books that a backend keeps.
#include <gtest/gtest.h>

#include <limits>

#include "guarded.h"
#include "machines.h"
#include "row_run.h"

// AddressSanitizer ends the program at an allocation too large for it, unless told to return null as malloc does.
extern "C" const char* __asan_default_options() { return "allocator_may_return_null=1"; }

namespace ddtree::ops {
namespace {

TEST(Memory, TooMuchIsExhaustedAndNamesItsPurpose) {
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    for (int64_t bytes : {std::numeric_limits<int64_t>::max(), int64_t{1} << 60}) {
      const Result<Buffer> buffer = backend->allocate(bytes, "key-value pages");
      ASSERT_FALSE(buffer.ok()) << machine.name;
      EXPECT_EQ(buffer.error().code, Code::kExhausted) << machine.name;
      EXPECT_NE(buffer.error().message.find("key-value pages"), std::string::npos) << buffer.error().message;
    }
  }
}

TEST(Memory, BuffersAreUsableAndEmptyOnesAllowed) {
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    for (int64_t bytes : {0, 1, 63, 64, 65, 1000}) {
      const Result<Buffer> buffer = backend->allocate(bytes, "test");
      ASSERT_TRUE(buffer.ok()) << machine.name;
      EXPECT_EQ(buffer->bytes(), bytes) << machine.name;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u) << machine.name;
      std::memset(buffer->data(), 1, static_cast<size_t>(bytes));
    }
  }
}

TEST(Memory, PreparedVectorIsFloat32) {
  WeightMaker maker(1);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const TensorView source = maker.gain(33, dtype);
    for (const Machine& machine : machines()) {
      const std::unique_ptr<Backend> backend = make(machine);
      const Result<Buffer> copy = backend->prepare_vector(source);
      ASSERT_TRUE(copy.ok()) << machine.name;
      const TensorView view = copy->view(DType::kF32, {33});
      for (int i = 0; i < 33; ++i) EXPECT_EQ(view.as<float>()[i], vector_value(source, i)) << machine.name;
    }
  }
}

std::vector<float> numbered(int64_t rows, int64_t width) {
  std::vector<float> v(rows * width);
  std::iota(v.begin(), v.end(), 0.0f);
  return v;
}

// A swap, a chain that overwrites its own sources, one source for two targets, and a copy onto itself.
TEST(CopyRows, ReadsEverythingBeforeWriting) {
  const std::vector<std::pair<int32_t, int32_t>> rows = {{0, 1}, {1, 0}, {5, 6}, {6, 7}, {7, 8}, {5, 9}, {3, 3}};
  for (const Machine& machine : machines()) {
    for (int32_t threads : {1, 3}) {
      const std::unique_ptr<Backend> backend = make(machine, threads);
      const Guarded a(*backend, {10, 33}, numbered(10, 33)), b(*backend, {12, 576}, numbered(12, 576));
      const std::vector<float> old_a = a.values(), old_b = b.values();
      std::vector<float> want_a = old_a, want_b = old_b;
      for (auto [from, to] : rows) {
        std::copy_n(old_a.begin() + from * 33, 33, want_a.begin() + to * 33);
        std::copy_n(old_b.begin() + from * 576, 576, want_b.begin() + to * 576);
      }
      const std::array<KvLayer, 2> caches = {a.view(), b.view()};
      const Batch batch;
      backend->stage(batch);
      backend->copy_rows(caches, rows);
      ASSERT_TRUE(backend->finish().ok());
      EXPECT_EQ(a.values(), want_a) << machine.name;
      EXPECT_EQ(b.values(), want_b) << machine.name;
      a.expect_guards();
      b.expect_guards();
    }
  }
}

TEST(GatherRows, TakesRowsInAnyOrderAndFromStridedViews) {
  const std::vector<int32_t> rows = {4, 0, 4, 2};
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine, 2);
    const Guarded x(*backend, {5, 40}, numbered(5, 40));
    const Guarded out(*backend, DType::kF32, {4, 17});
    TensorView part = x.view();  // the first 17 of every 40
    part.dim[1] = 17;
    const Batch batch;
    backend->stage(batch);
    backend->gather_rows(out.view(), part, rows);
    ASSERT_TRUE(backend->finish().ok());
    for (size_t i = 0; i < rows.size(); ++i)
      for (int j = 0; j < 17; ++j) EXPECT_EQ(out.view().row<float>(i)[j], rows[i] * 40 + j) << machine.name;
    out.expect_guards();
  }
}

// Taps of several layers lie side by side, so verbs read and write parts of wider rows.
TEST(Linear, ReadsAndWritesStridedRows) {
  WeightMaker maker(2);
  const Linear linear = maker.linear(24, 40, kBF16);
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine, 2);
    const auto w = ready(backend->prepare(std::span<const Linear>(&linear, 1)));
    const std::vector<float> values = Random(1).normals(19 * 40);
    std::vector<float> spread(19 * 100);
    for (int t = 0; t < 19; ++t) std::copy_n(values.begin() + t * 40, 40, spread.begin() + t * 100 + 30);
    const Guarded dense_x(*backend, {19, 40}, values), wide_x(*backend, {19, 100}, spread);
    const Guarded dense_out(*backend, DType::kF32, {19, 24}), wide_out(*backend, DType::kF32, {19, 50});
    TensorView x = wide_x.view(), out = wide_out.view();
    x.data = x.as<float>() + 30;
    x.dim[1] = 40;
    out.data = out.as<float>() + 20;
    out.dim[1] = 24;
    const Batch batch;
    backend->stage(batch);
    backend->linear(dense_out.view(), dense_x.view(), *w);
    backend->linear(out, x, *w);
    ASSERT_TRUE(backend->finish().ok());
    for (int t = 0; t < 19; ++t) {
      EXPECT_TRUE(same_bits(out.row<float>(t), dense_out.view().row<float>(t), 24)) << machine.name << ", row " << t;
      for (int i : {0, 19, 44, 49}) EXPECT_TRUE(std::isnan(wide_out.view().row<float>(t)[i])) << machine.name;
    }
  }
}

TEST(Books, WeightBytesCountWhatWasRead) {
  WeightMaker maker(3);
  const Linear linear = maker.linear(64, 64, kBF16);
  const MoeSource moe = make_moe(maker, {64, 32, 0, 16, {MoeRouting::Score::kSigmoid, 2, 1, 1, true, true, 1}});
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    const auto w = ready(backend->prepare(std::span<const Linear>(&linear, 1)));
    const auto experts = ready(backend->prepare(moe));
    const Guarded x(*backend, {2, 64}, Random(1).normals(128));
    const Guarded out(*backend, DType::kF32, {2, 64});
    const Batch batch{
        .token = {0, 0}, .position = {0, 1}, .kv_row = {0, 1}, .ancestors = {}, .segments = {}, .head_row = {}};
    backend->stage(batch);
    backend->take_weight_bytes();
    backend->linear(out.view(), x.view(), *w);
    const int64_t plain = backend->take_weight_bytes();
    EXPECT_GE(plain, 64 * 64 * 2) << machine.name;
    EXPECT_EQ(backend->take_weight_bytes(), 0) << machine.name;
    backend->moe(out.view().slice(0, 1), x.view().slice(0, 1), *experts);
    const int64_t one_row = backend->take_weight_bytes();
    EXPECT_GE(one_row, 2 * 3 * 64 * 32 / 2) << machine.name;              // two experts of INT4
    EXPECT_LE(one_row, (2 * 3 * 64 * 32 + 16 * 64) * 4) << machine.name;  // and never all 16 of them
    ASSERT_TRUE(backend->finish().ok());
  }
}

TEST(Books, TimeGoesToThePhaseThatEnds) {
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    backend->mark(Phase::kHost);
    backend->take_phase_ms();
    backend->mark(Phase::kExperts);
    const std::array<double, kPhases> ms = backend->take_phase_ms();
    EXPECT_GT(ms[static_cast<size_t>(Phase::kExperts)], 0) << machine.name;
    EXPECT_EQ(ms[static_cast<size_t>(Phase::kHost)], 0) << machine.name;
    for (double phase : backend->take_phase_ms()) EXPECT_EQ(phase, 0) << machine.name;
  }
}

TEST(Registry, RefusesWhatItDoesNotHave) {
  const auto expect_refused = [](const BackendOptions& options, const std::string& word) {
    const Result<std::unique_ptr<Backend>> backend = make_backend(options);
    ASSERT_FALSE(backend.ok());
    EXPECT_EQ(backend.error().code, Code::kInvalidArgument);
    EXPECT_NE(backend.error().message.find(word), std::string::npos) << backend.error().message;
  };
  expect_refused({"gpu", 0, "auto"}, "gpu");
  expect_refused({"", 0, "auto"}, "device");
  expect_refused({"ref", -1, "auto"}, "threads");
  expect_refused({"ref", 0, "sse9"}, "sse9");
}

}  // namespace
}  // namespace ddtree::ops
