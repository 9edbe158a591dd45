// The search of a tree's nodes as the GPU runs it, with a loop for the thread block: needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <random>

using std::max;  // which the device has built in
using std::min;

#include "../spec/reference_tree.h"
#include "backend/cuda/spec/tree_search.cuh"

namespace ddtree::cuda {
namespace {

using testing::Candidates;

class LoopBlock {
 public:
  static constexpr int kThreads = kTreeThreads, kLanes = 1;
  template <class F>
  void each(const F& f) {
    for (int t = 0; t < kThreads; ++t) f(t);
  }
  void sync() {}
  void sync_warp() {}
  bool in_first_warp() { return ++frontiers_ > 0; }
  int lane() { return 0; }
  template <class T, class V>
  static T add(T* p, V v) {
    const T old = *p;
    *p += static_cast<T>(v);
    return old;
  }
  template <class T>
  static T add_one(T* p) {
    return add(p, 1);
  }
  static int allocate(int* p, int count) { return add(p, count); }
  static void set(uint32_t* p, uint32_t bits) { *p |= bits; }
  static int highest_bit(uint32_t v) { return 31 - std::countl_zero(v); }
  static void lower(int* p, int v) { *p = std::min(*p, v); }
  static void lower_all(int* p, int v) { lower(p, v); }
  void raise(const uint32_t* bins, uint32_t* offset, uint32_t*, int wanted, int* limit) {
    uint32_t sum = 0;
    for (int i = 0; i < kBins; ++i) {
      offset[i] = sum;
      sum += bins[i];
      if (offset[i] < static_cast<uint32_t>(wanted) && sum >= static_cast<uint32_t>(wanted)) *limit = i;
    }
    offset[kBins] = sum;
  }
  uint32_t holders_of_largest(uint64_t) { return 1; }
  int from_lowest(int v, uint32_t) { return v; }
  int frontiers() const { return frontiers_; }

 private:
  int frontiers_ = 0;
};

// Whether the frontier had to help.
bool expect_as_host(TreeShared& shared, const Candidates& c, int budget, bool chain_first) {
  Tree want;
  build_tree(c.view(), 1, budget, {.chain_first = chain_first}, want);
  LoopBlock block;
  TreeSearch<LoopBlock> search(block, shared);
  search.clear();
  for (int s = 0; s < c.slots; ++s)
    for (int r = 0; r < c.k; ++r) search.put_candidate(s, r, c.lp(s, r), 0);
  search.run({c.slots, c.k, budget, chain_first});
  EXPECT_EQ(shared.rows, want.rows);
  for (int i = 1; i < std::min(shared.rows, want.rows); ++i) {
    const auto node = static_cast<size_t>(i);
    const int at = shared.slot_of[i];
    EXPECT_EQ(shared.node_of[at], i);
    EXPECT_EQ(shared.log_sum[i], want.log_prob[node]);
    EXPECT_EQ(shared.depth[at], want.depth[node]);
    EXPECT_EQ(shared.rank[at], want.rank[node]);
    EXPECT_EQ(shared.node_of[shared.parent[at]], want.parent[node]);
    if (::testing::Test::HasFailure()) break;
  }
  return block.frontiers() > 0;
}

TEST(TreeSearch, EqualsTheHost) {
  const auto shared = std::make_unique<TreeShared>();
  std::mt19937 random(1);
  int drafts = 0, drafts_by_frontier = 0;
  for (int round = 0; round < 4000 && !HasFailure(); ++round) {
    const int slots = 1 + static_cast<int>(random() % 16), k = 1 + static_cast<int>(random() % 64);
    const int budget = static_cast<int>(random() % 256);
    SCOPED_TRACE(::testing::Message() << slots << " slots, " << k << " candidates, budget " << budget);
    Candidates c = testing::random_candidates(random, slots, k, 0.2f + static_cast<float>(random() % 40) / 8);
    if (round % 4 == 0)  // logits in bf16
      for (float& x : c.log_prob) x = std::round(x * 16) / 16;
    const bool by_frontier = expect_as_host(*shared, c, budget, random() % 4 == 0);
    ++drafts, drafts_by_frontier += by_frontier;
    expect_as_host(*shared, testing::tied_candidates(random, slots, k, static_cast<int>(random() % 40)), budget, false);
    expect_as_host(*shared, testing::rounding_candidates(random, slots, k), budget, random() % 2 == 0);
  }
  EXPECT_LT(drafts_by_frontier * 50, drafts);  // what a drafter may say seldom needs the frontier
}

}  // namespace
}  // namespace ddtree::cuda
