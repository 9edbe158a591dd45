// The INT4 expert layer on a GPU: against a reference in double that knows nothing of packing, and bit for bit against
// itself in other batches, places, modes and shared-memory sizes.
#include "backend/cuda/moe/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "backend/cuda/device_memory.h"
#include "base/bf16.h"
#include "support/random_experts.h"

namespace ddtree::cuda {
namespace {

constexpr ExpertShape kDemo{32, 256, 128, 4};
constexpr int64_t kGuard = 4096;          // bytes before and after every output
constexpr uint8_t kPoison = 0xff;         // NaN in every format
constexpr int32_t kSmallShared = 101376;  // of sm_120

constexpr ExpertMode kAllModes[] = {ExpertMode::kSplit32, ExpertMode::kSplit64, ExpertMode::kSplit128,
                                    ExpertMode::kWide8,   ExpertMode::kWide16,  ExpertMode::kWide32};

std::string name_of(std::optional<ExpertMode> mode) {
  return mode ? std::to_string(static_cast<int>(*mode)) : "picked";
}

struct Batch {
  std::vector<uint16_t> x;  // [rows, hidden]
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int32_t rows = 0;
};

template <class T>
Buffer on_device(const std::vector<T>& host) {
  Result<Buffer> buffer =
      allocate_device(std::max<int64_t>(16, static_cast<int64_t>(host.size() * sizeof(T))), "a test");
  EXPECT_TRUE(buffer.ok());
  EXPECT_EQ(cudaMemcpy(buffer->data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  return *std::move(buffer);
}

Batch random_batch(const ExpertShape& shape, int32_t rows, uint64_t seed) {
  const Routing routing = random_routing(shape, rows, seed);
  return {random_activations(static_cast<int64_t>(rows) * shape.hidden, seed), routing.ids, routing.weights, rows};
}

// Row i of the result is row pick[i] of `batch`.
Batch select(const Batch& batch, const std::vector<int32_t>& pick) {
  const size_t hidden = batch.x.size() / static_cast<size_t>(batch.rows),
               k = batch.ids.size() / static_cast<size_t>(batch.rows);
  Batch out;
  out.rows = static_cast<int32_t>(pick.size());
  for (const int32_t i : pick) {
    const auto row = static_cast<size_t>(i);
    out.x.insert(out.x.end(), &batch.x[row * hidden], &batch.x[row * hidden] + hidden);
    out.ids.insert(out.ids.end(), &batch.ids[row * k], &batch.ids[row * k] + k);
    out.weights.insert(out.weights.end(), &batch.weights[row * k], &batch.weights[row * k] + k);
  }
  return out;
}

class Layer {
 public:
  explicit Layer(const ExpertShape& shape, uint64_t seed = 1) : shape_(shape), seed_(seed) {
    Result<ExpertDevice> device = expert_device();
    EXPECT_TRUE(device.ok());
    device_ = *device;
    EXPECT_TRUE(check_expert_shape(shape).ok());
    Result<RandomExperts> experts = make_random_experts(shape, seed, nullptr);
    EXPECT_TRUE(experts.ok()) << experts.error().message;
    experts_ = *std::move(experts);
  }
  const ExpertDevice& device() const { return device_; }

  // bf16 [rows, hidden], from poisoned buffers between guards. Runs `times` times on one workspace.
  std::vector<uint16_t> run(const Batch& batch, std::optional<ExpertMode> mode, int32_t shared_bytes = 0,
                            int times = 1) {
    const int64_t work_bytes = expert_workspace_bytes(shape_, batch.rows);
    const Buffer work = on_device(std::vector<uint8_t>(static_cast<size_t>(work_bytes + 2 * kGuard), kPoison));
    uint8_t* workspace = static_cast<uint8_t*>(work.data()) + kGuard;
    EXPECT_TRUE(init_expert_workspace(shape_, batch.rows, workspace, nullptr).ok());
    std::vector<uint16_t> result;
    for (int i = 0; i < times; ++i) result = run_on(workspace, batch, mode, shared_bytes);
    expect_guards(work, work_bytes);
    return result;
  }

  // The same on a workspace that others use too.
  std::vector<uint16_t> run_on(void* workspace, const Batch& batch, std::optional<ExpertMode> mode,
                               int32_t shared_bytes = 0) {
    ExpertDevice device = device_;
    if (shared_bytes != 0) device.shared_bytes = shared_bytes;
    const int64_t out_bytes = static_cast<int64_t>(batch.rows) * shape_.hidden * 2;
    const Buffer out = on_device(std::vector<uint8_t>(static_cast<size_t>(out_bytes + 2 * kGuard), kPoison));
    const Buffer x = on_device(batch.x), ids = on_device(batch.ids), weights = on_device(batch.weights);
    uint8_t* result = static_cast<uint8_t*>(out.data()) + kGuard;
    const Status status =
        run_experts(shape_, device,
                    {experts_.gate_up.data(), experts_.down.data(), x.data(), static_cast<const int32_t*>(ids.data()),
                     static_cast<const float*>(weights.data()), result, batch.rows, workspace, mode},
                    nullptr);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect_guards(out, out_bytes);
    std::vector<uint16_t> host(static_cast<size_t>(out_bytes / 2));
    EXPECT_EQ(cudaMemcpy(host.data(), result, static_cast<size_t>(out_bytes), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

  double error(const Batch& batch, const std::vector<uint16_t>& out, int32_t row) const {
    const auto hidden = static_cast<size_t>(shape_.hidden), k = static_cast<size_t>(shape_.top_k),
               i = static_cast<size_t>(row);
    std::vector<float> x(hidden);
    for (size_t c = 0; c < hidden; ++c) x[c] = bf16_to_f32(batch.x[i * hidden + c]);
    const std::vector<double> want = reference_row(shape_, seed_, x, std::span(batch.ids).subspan(i * k, k),
                                                   std::span(batch.weights).subspan(i * k, k));
    return relative_error(std::span(out).subspan(i * hidden, hidden), want);
  }

  // The modes that run here with this much shared memory; none: what the engine would pick.
  std::vector<std::optional<ExpertMode>> modes(int32_t shared_bytes) const {
    ExpertDevice device = device_;
    if (shared_bytes != 0) device.shared_bytes = shared_bytes;
    std::vector<std::optional<ExpertMode>> out = {std::nullopt};
    for (const ExpertMode mode : kAllModes)
      if (max_launch_rows(shape_, device, mode) > 0) out.push_back(mode);
    return out;
  }

 private:
  static void expect_guards(const Buffer& buffer, int64_t bytes) {
    std::vector<uint8_t> all(static_cast<size_t>(bytes + 2 * kGuard));
    EXPECT_EQ(cudaMemcpy(all.data(), buffer.data(), all.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuard, [](uint8_t b) { return b == kPoison; }));
    EXPECT_TRUE(std::all_of(all.end() - kGuard, all.end(), [](uint8_t b) { return b == kPoison; }));
  }

  ExpertShape shape_;
  uint64_t seed_;
  ExpertDevice device_;
  RandomExperts experts_;
};

// Three roundings to bf16 (h, y, out), each of relative error ≤ 2⁻⁹ and 1.7e-3 of the norm on average over a binade.
constexpr double kMaxError = 5e-3;

void expect_parity(const ExpertShape& shape, const std::vector<int32_t>& row_counts) {
  Layer layer(shape);
  for (const int32_t shared : {0, kSmallShared})
    for (const std::optional<ExpertMode> mode : layer.modes(shared))
      for (const int32_t rows : row_counts) {
        SCOPED_TRACE("mode " + name_of(mode) + ", rows " + std::to_string(rows) + ", shared " + std::to_string(shared));
        const Batch batch = random_batch(shape, rows, static_cast<uint64_t>(rows));
        const std::vector<uint16_t> out = layer.run(batch, mode, shared);
        for (const int32_t row : {0, rows / 2, rows - 1}) EXPECT_LT(layer.error(batch, out, row), kMaxError);
      }
}

TEST(ExpertsTiny, DemoShape) { expect_parity(kDemo, {1, 3, 9}); }
TEST(ExpertsTiny, OneBlock) { expect_parity({3, 128, 128, 2}, {1, 5}); }
TEST(Experts, DemoShape) { expect_parity(kDemo, {1, 2, 8, 33, 200}); }
TEST(Experts,
     OddShapes) {  // K blocks that the segments don't divide, row blocks that units don't divide, top_k above 8
  expect_parity({7, 384, 640, 3}, {1, 6, 70});
  expect_parity({20, 896, 384, 11}, {2, 65});
  expect_parity({1, 128, 256, 1}, {1, 40});
}

TEST(Experts, BitsDoNotDependOnTheBatch) {
  for (const ExpertShape& shape : {kDemo, ExpertShape{24, 1152, 384, 6}}) {
    Layer layer(shape);
    const int32_t rows = 1024;
    const Batch all = random_batch(shape, rows, 3);
    const std::vector<uint16_t> base = layer.run(all, ExpertMode::kWide16);
    const auto hidden = static_cast<size_t>(shape.hidden);
    std::mt19937 random(5);
    for (const int32_t shared : {0, kSmallShared})
      for (const std::optional<ExpertMode> mode : layer.modes(shared))
        for (const int32_t m : {1, 2, 4, 9, 33, 90, 256, 1024}) {
          std::vector<int32_t> pick(static_cast<size_t>(m));
          std::generate(pick.begin(), pick.end(), [&] { return static_cast<int32_t>(random() % rows); });
          const std::vector<uint16_t> out = layer.run(select(all, pick), mode, shared);
          size_t different = 0;
          for (size_t i = 0; i < pick.size(); ++i)
            different += std::memcmp(&out[i * hidden], &base[static_cast<size_t>(pick[i]) * hidden], hidden * 2) != 0;
          EXPECT_EQ(different, 0u) << "mode " << name_of(mode) << ", rows " << m << ", shared " << shared;
        }
  }
}

// All rows to the same experts: tiles of every size, up to the largest launch and past it.
TEST(Experts, AllRowsToOneExpert) {
  const ExpertShape shape{16, 256, 256, 2};
  Layer layer(shape);
  for (const int32_t rows : {1, 7, 17, 25, 31, 64, 1088, 1500}) {
    Batch batch = random_batch(shape, rows, 11);
    for (size_t i = 0; i < batch.ids.size(); ++i) batch.ids[i] = i % 2 == 0 ? 15 : 4;
    const std::vector<uint16_t> base = layer.run(batch, ExpertMode::kWide16);
    EXPECT_LT(layer.error(batch, base, rows - 1), kMaxError);
    for (const std::optional<ExpertMode> mode : layer.modes(0))
      EXPECT_EQ(layer.run(batch, mode), base) << "mode " << name_of(mode) << ", rows " << rows;
  }
}

// Rows without experts give zeros and disturb nobody.
TEST(ExpertsTiny, PaddingRows) {
  Layer layer(kDemo);
  Batch batch = random_batch(kDemo, 9, 2);
  const std::vector<uint16_t> base = layer.run(batch, std::nullopt);
  for (const int32_t row : {0, 4, 8}) std::fill_n(batch.ids.begin() + row * kDemo.top_k, kDemo.top_k, -1);
  for (const std::optional<ExpertMode> mode : layer.modes(0)) {
    const std::vector<uint16_t> out = layer.run(batch, mode);
    for (int32_t row = 0; row < 9; ++row)
      for (int32_t c = 0; c < kDemo.hidden; ++c) {
        const auto at = static_cast<size_t>(row * kDemo.hidden + c);
        ASSERT_EQ(out[at], row % 4 == 0 ? 0 : base[at]) << row << ", " << c;
      }
  }
  std::fill(batch.ids.begin(), batch.ids.end(), -1);
  EXPECT_EQ(layer.run(batch, std::nullopt), std::vector<uint16_t>(base.size(), 0));
}

// A NaN in one row stays there.
TEST(ExpertsTiny, NanStaysInItsRow) {
  Layer layer(kDemo);
  Batch batch = random_batch(kDemo, 8, 4);
  std::fill(batch.ids.begin(), batch.ids.end(), 0);
  for (size_t i = 0; i < batch.ids.size(); ++i) batch.ids[i] = static_cast<int32_t>(i % 4);
  const std::vector<uint16_t> base = layer.run(batch, ExpertMode::kWide8);
  batch.x[3 * 256 + 17] = 0x7fc0;
  for (const std::optional<ExpertMode> mode : layer.modes(0)) {
    const std::vector<uint16_t> out = layer.run(batch, mode);
    for (size_t row = 0; row < 8; ++row) {
      if (row == 3)
        EXPECT_TRUE(bf16_to_f32(out[row * 256]) != bf16_to_f32(out[row * 256]));
      else
        EXPECT_EQ(std::memcmp(&out[row * 256], &base[row * 256], 512), 0)
            << "row " << row << ", mode " << name_of(mode);
    }
  }
}

// Launches leave the workspace as they need it, and repeat to the bit.
TEST(Experts, RepeatsToTheBit) {
  Layer layer(kDemo);
  const Batch batch = random_batch(kDemo, 60, 9);
  for (const std::optional<ExpertMode> mode : layer.modes(0))
    EXPECT_EQ(layer.run(batch, mode, 0, 1), layer.run(batch, mode, 0, 5));
}

// A step of any size finds the workspace as the step before left it.
TEST(Experts, OneWorkspaceForAllRowCounts) {
  Layer layer(kDemo);
  const Buffer work =
      on_device(std::vector<uint8_t>(static_cast<size_t>(expert_workspace_bytes(kDemo, 1024)), kPoison));
  ASSERT_TRUE(init_expert_workspace(kDemo, 1024, work.data(), nullptr).ok());
  for (const std::optional<ExpertMode> mode : layer.modes(0))
    for (const int32_t rows : {1024, 4, 300, 1, 90, 7, 1024, 33}) {
      const Batch batch = random_batch(kDemo, rows, static_cast<uint64_t>(rows));
      EXPECT_EQ(layer.run_on(work.data(), batch, mode), layer.run(batch, mode))
          << "mode " << name_of(mode) << ", rows " << rows;
    }
}

}  // namespace
}  // namespace ddtree::cuda
