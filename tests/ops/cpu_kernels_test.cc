// The cpu backend's parts that no verb shows alone: packing, long sums in pieces, exponentials, the k largest, memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backend/cpu/head.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/rank_key.h"
#include "backend/cpu/rope.h"
#include "ops/weight_maker.h"

namespace ddtree::ops {
namespace {

using cpu::KernelTable;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const KernelTable*> tables() {
  std::vector<const KernelTable*> all;
  for (std::string_view isa : {"portable", "avx512"}) {
    const Result<const KernelTable*> table = cpu::select_kernels(isa);
    if (table.ok()) all.push_back(*table);
  }
  return all;
}

cpu::Matrix pack(const Linear& w, cpu::WeightArena& arena) {
  Result<cpu::Matrix> packed = cpu::pack({&w, 1}, arena, "test");
  CHECK(packed.ok());
  return *std::move(packed);
}

std::vector<Linear> formats(WeightMaker& maker, int64_t out, int64_t in) {
  return {maker.linear(out, in, kF32),
          maker.linear(out, in, kF16),
          maker.linear(out, in, kBF16),
          maker.linear(out, in, kInt4),
          maker.linear(out, in, {DType::kF32, 64}),
          maker.linear(out, in, {DType::kF16, 128})};
}

std::vector<std::vector<float>> run_gemm(const KernelTable& kernels, const cpu::Matrix& w,
                                         const std::vector<std::vector<float>>& x) {
  std::vector<std::vector<float>> y(x.size(), std::vector<float>(w.out, kNan));
  std::vector<const float*> in;
  std::vector<float*> out;
  for (const auto& row : x) in.push_back(row.data());
  for (auto& row : y) out.push_back(row.data());
  kernels.gemm({&w, 0, w.panels(), in.data(), out.data(), static_cast<int32_t>(x.size()), 0});
  return y;
}

TEST(CpuPack, EveryWeightComesBackExactly) {
  for (auto [out, in] : {std::pair<int64_t, int64_t>{1, 128}, {16, 256}, {70, 384}, {129, 128}}) {
    WeightMaker maker(3);
    cpu::WeightArena arena;
    for (const Linear& w : formats(maker, out, in)) {
      const cpu::Matrix packed = pack(w, arena);
      std::vector<float> row(in);
      for (int64_t o = 0; o < out; ++o) {
        cpu::unpack_row(packed, o, row.data());
        for (int64_t i = 0; i < in; ++i) ASSERT_EQ(row[i], static_cast<float>(weight_value(w, o, i)));
      }
    }
  }
}

TEST(CpuPack, GroupsThatSplitWordsAreRefused) {
  WeightMaker maker(3);
  cpu::WeightArena arena;
  const Linear w = maker.linear(16, 24, {DType::kBF16, 12});
  const Result<cpu::Matrix> packed = cpu::pack({&w, 1}, arena, "gate");
  ASSERT_FALSE(packed.ok());
  EXPECT_EQ(packed.error().code, Code::kUnsupported);
  EXPECT_NE(packed.error().message.find("gate"), std::string::npos);
}

// Inputs long enough that many rows make the kernels stop and resume their sums.
TEST(CpuGemm, LongSumsAreRightAndTheSameForAnyRowCount) {
  constexpr int64_t kOut = 83, kIn = 4096;
  WeightMaker maker(5);
  cpu::WeightArena arena;
  std::vector<std::vector<float>> x;
  for (int r = 0; r < cpu::kRowTile; ++r) x.push_back(maker.random().normals(kIn));
  for (const Linear& w : formats(maker, kOut, kIn)) {
    const cpu::Matrix packed = pack(w, arena);
    for (const KernelTable* kernels : tables()) {
      std::vector<std::vector<float>> alone;
      for (int r = 0; r < 13; ++r) alone.push_back(run_gemm(*kernels, packed, {x[r]})[0]);
      for (size_t rows : {2, 3, 4, 5, 6, 7, 13, 96}) {
        const auto y = run_gemm(*kernels, packed, {x.begin(), x.begin() + rows});
        for (size_t r = 0; r < std::min<size_t>(rows, 13); ++r)
          ASSERT_EQ(std::memcmp(y[r].data(), alone[r].data(), kOut * sizeof(float)), 0)
              << kernels->name << ", " << rows;
      }
      // A chain of n rounded sums is off by at most n · 2^-24 of the sum of magnitudes; two more for scales and
      // products.
      for (int64_t o : {0, 15, 16, 63, 64, 82}) {
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < kIn; ++i) {
          const double term = weight_value(w, o, i) * x[0][i];
          sum += term;
          magnitude += std::abs(term);
        }
        EXPECT_NEAR(alone[0][o], sum, (2 * kIn + 2) * 0x1p-24 * magnitude) << kernels->name;
      }
    }
  }
}

TEST(CpuExp, IsWithinTwoUnitsOfTheLastPlace) {
  for (const KernelTable* kernels : tables()) {
    for (float start = -87.25f; start < 0; start += 0.37f) {
      float scores[cpu::kChunk];
      scores[0] = 0;  // the largest: the results are the exponentials themselves
      for (int i = 1; i < cpu::kChunk; ++i) scores[i] = std::min(start + 0.0057f * static_cast<float>(i), 0.0f);
      float p[cpu::kChunk], max, sum;
      std::memcpy(p, scores, sizeof p);
      kernels->softmax(p, 1, &max, &sum);
      ASSERT_EQ(p[0], 1.0f);
      ASSERT_EQ(max, 0.0f);
      double total = 0;
      for (int i = 0; i < cpu::kChunk; ++i) {
        const double want = std::exp(static_cast<double>(scores[i]));
        ASSERT_NEAR(p[i], want, 2 * 0x1p-23 * want) << kernels->name << " at " << scores[i];
        total += want;
      }
      ASSERT_NEAR(sum, total, 8 * 0x1p-23 * total);
    }
  }
}

TEST(CpuExp, EndsOfTheRange) {
  for (const KernelTable* kernels : tables()) {
    float scores[cpu::kChunk], max, sum;
    std::fill_n(scores, cpu::kChunk, -kInf);
    scores[7] = 5;
    scores[8] = -200;
    kernels->softmax(scores, 2, &max, &sum);
    EXPECT_EQ(max, 10);
    EXPECT_EQ(sum, 1);
    for (int i = 0; i < cpu::kChunk; ++i) EXPECT_EQ(scores[i], i == 7 ? 1 : 0);
    const float gate[] = {0, -1000, 1000, kNan, -90, 90, 1};
    const float up[] = {3, 3, 3, 3, 3, 3, 3};
    float out[7];
    kernels->silu_mul(out, gate, up, 7);
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[1], 0);
    EXPECT_EQ(out[2], 3000);
    EXPECT_TRUE(std::isnan(out[3]));
    EXPECT_NEAR(out[4], 0, 1e-36);
    EXPECT_EQ(out[5], 270);
    EXPECT_NEAR(out[6], 3 / (1 + std::exp(-1.0)), 1e-6);
  }
}

// Against a full sort, on values with many ties and all the special ones.
TEST(CpuTopK, IsTheHeadOfASort) {
  Random random(17);
  const float special[] = {kInf, -kInf, kNan, 0.0f, -0.0f, 1.0f};
  for (const KernelTable* kernels : tables()) {
    for (int round = 0; round < 300; ++round) {
      const auto n = 1 + random.below(1500);
      const int64_t k = 1 + random.below(std::min<int64_t>(n, 80));
      const int64_t kinds = 1 + random.below(40), rare = 1 + random.below(50);
      std::vector<float> v(n);
      for (float& x : v)
        x = random.below(rare) == 0 ? special[random.below(6)] : static_cast<float>(random.below(kinds)) - 5.0f;
      cpu::TopK top;
      top.reset(k);
      for (int64_t i = 0; i < n; i += cpu::TopK::kBlock)
        top.add(*kernels, v.data() + i, static_cast<int32_t>(i), std::min(cpu::TopK::kBlock, n - i));
      const std::span<const uint64_t> kept = top.keys();
      std::vector<uint64_t> keys(kept.begin(), kept.end());
      ASSERT_EQ(static_cast<int64_t>(keys.size()), k);
      std::ranges::sort(keys, std::greater<>());

      std::vector<int32_t> order(n);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(
          order, [&](int32_t a, int32_t b) { return std::isnan(v[b]) ? !std::isnan(v[a]) : v[a] > v[b]; });
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(cpu::rank_index(keys[i]), order[i]) << kernels->name << ", round " << round;
        const float value = cpu::rank_value(keys[i]);
        ASSERT_TRUE(value == v[order[i]] || (std::isnan(value) && std::isnan(v[order[i]])));
      }
    }
  }
}

// Tables are kept for low positions and formed anew for high ones; batches mix them in any order.
TEST(CpuRope, EveryPositionIsRotatedByItsOwnAngle) {
  cpu::RopeTables tables;
  const Rope rope = make_rope(8, true);
  const int table = tables.add(rope);
  EXPECT_EQ(tables.add(make_rope(8, true)), table);
  EXPECT_NE(tables.add(make_rope(8, false)), table);
  for (const std::vector<int32_t>& positions :
       {std::vector<int32_t>{3}, {0, 32767, 7}, {32768, 2, 200000, 32767}, {9, 8, 7}}) {
    tables.stage(positions);
    tables.prepare(table);
    for (size_t row = 0; row < positions.size(); ++row) {
      float x[8] = {1, 0, 1, 0, 0, 1, 2, 1};
      tables.rotate(table, static_cast<int64_t>(row), x);
      const auto angle = [&](size_t i) { return static_cast<double>(rope_angle(rope, positions[row], i)); };
      EXPECT_NEAR(x[0], std::cos(angle(0)), 1e-7) << positions[row];
      EXPECT_NEAR(x[1], std::sin(angle(0)), 1e-7) << positions[row];
      EXPECT_NEAR(x[4], -std::sin(angle(2)), 1e-7) << positions[row];
      EXPECT_NEAR(x[7], 2 * std::sin(angle(3)) + std::cos(angle(3)), 3e-7) << positions[row];
    }
  }
}

// A page fault inside a decode step costs as much as a verb.
TEST(CpuMemory, SmallBuffersAreTouchedWhenTaken) {
  constexpr int64_t kBytes = 200 << 10, kPage = 4096;
  const Buffer buffer = cpu::allocate_host(kBytes);
  ASSERT_NE(buffer.data(), nullptr);
  rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  for (int64_t i = 0; i < kBytes; i += kPage) static_cast<volatile char*>(buffer.data())[i] = 1;
  getrusage(RUSAGE_THREAD, &after);
  EXPECT_LT(after.ru_minflt - before.ru_minflt, kBytes / kPage / 4);
}

TEST(CpuArena, BlocksAreAlignedDisjointAndTakenBack) {
  cpu::WeightArena arena;
  std::vector<cpu::WeightArena::Block> blocks;
  for (int64_t bytes : {1, 63, 64, 65, 1 << 20, 20 << 20, 5 << 20, 13 << 20}) {
    blocks.push_back(arena.allocate(bytes));
    ASSERT_NE(blocks.back().data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back().data()) % 64, 0u);
    std::memset(blocks.back().data(), static_cast<int>(blocks.size()), bytes);
  }
  size_t i = 1;
  for (const auto& block : blocks) EXPECT_EQ(*block.data(), i++);
  blocks.erase(blocks.begin() + 2, blocks.begin() + 6);
  const cpu::WeightArena::Block moved = std::move(blocks[0]);
  EXPECT_EQ(*moved.data(), 1);
  EXPECT_EQ(arena.allocate(int64_t{1} << 62).data(), nullptr);
}

TEST(CpuIsa, UnknownNamesAreRefused) {
  EXPECT_TRUE(cpu::select_kernels("auto").ok());
  EXPECT_EQ((*cpu::select_kernels("portable"))->name, "portable");
  const auto unknown = cpu::select_kernels("sse9");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace ddtree::ops
