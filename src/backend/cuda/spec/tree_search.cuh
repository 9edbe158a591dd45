// The best-first tree of one stream, built by one thread block in shared memory. Gives exactly the nodes, the order and
// the sums of build_tree (spec/tree.h).
//
// Where every sum is exact (checked: all log-probabilities are multiples of a power of two that leaves their largest
// sum below 2^53 of them) and no log-probability is positive or larger than the one before it, the first B pops of a
// heap are simply the B best nodes, and a node's score does not depend on the order of adding. Then nodes are found in
// rounds by their number of deviations from "rank 0": round j finds the nodes whose rank path has j ranks above 0 and
// ends in one of them, with the runs of rank 0 behind those of round j − 1. A path with j deviations comes after 2^j −
// 1 others, so that there are at most 8 rounds, where levels would be 16. A histogram of all scores seen says which bin
// holds the B-th best so far; nothing beyond that bin is kept. Its prefix sums then place every node, but for the order
// within a bin.
//
// Everything else (sums that round, more ties than the pool holds) goes through a frontier that one warp searches, in
// the host's own order of operations.
//
// `Block` is the thread block: each(f) runs f(thread) on all threads and then joins them; the warp functions serve the
// frontier. Host code can stand in for it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

#include "spec/tree.h"

namespace ddtree::cuda {

inline constexpr int kBins = 2048;
inline constexpr int kPool = 1024;  // candidates, the root included
inline constexpr int kTreeThreads = 512;

// One stream's part of a launch, within the limits of spec/tree.h.
struct TreeTask {
  int slots = 0, k = 0, budget = 0;
  bool chain_first = false;
};

// A byte per slot, most significant first, holding rank + 1: rank paths compare as these pairs of integers do.
struct RankPath {
  uint64_t high, low;

  __host__ __device__ bool operator<(const RankPath& other) const {
    return high < other.high || (high == other.high && low < other.low);
  }
  __host__ __device__ bool operator==(const RankPath& other) const { return high == other.high && low == other.low; }
};

// Ones in the bytes of slots 1 … depth.
__host__ __device__ inline RankPath ones_to(int depth) {
  constexpr uint64_t kOnes = 0x0101010101010101ull;
  if (depth <= 0) return {0, 0};
  if (depth < 8) return {kOnes << (8 * (8 - depth)), 0};
  return {kOnes, depth == 8 ? 0 : kOnes << (8 * (16 - depth))};
}

// `path`, of depth `from`, followed by ranks 0 up to slot depth − 1, then `rank`.
__host__ __device__ inline RankPath extend(RankPath path, int from, int depth, int rank) {
  const RankPath begin = ones_to(from), end = ones_to(depth - 1);
  path.high |= end.high & ~begin.high;
  path.low |= end.low & ~begin.low;
  const uint64_t last = static_cast<uint64_t>(rank + 1);
  if (depth <= 8)
    path.high |= last << (8 * (8 - depth));
  else
    path.low |= last << (8 * (16 - depth));
  return path;
}

__host__ __device__ inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

// The exponent of the lowest bit that is set in x; x is not 0.
__host__ __device__ inline int lowest_exponent(float x) {
  const uint32_t bits = bits_of(x), field = bits >> 23 & 255;
  const uint32_t mantissa = (bits & 0x7fffff) | (field == 0 ? 0u : 0x800000u);
  const uint32_t lowest = mantissa & (0u - mantissa);
  return static_cast<int>(bits_of(static_cast<float>(lowest)) >> 23) - 127 +
         (field == 0 ? 1 : static_cast<int>(field)) - 150;
}

// Orders as doubles do, −0 as 0; not for NaN.
__host__ __device__ inline uint64_t order_key(double x) {
  x += 0.0;
  uint64_t bits;
  memcpy(&bits, &x, 8);
  return bits >> 63 ? ~bits : bits | uint64_t{1} << 63;
}

// What the block shares. Slots of the pool are candidates; slot 0 is the root.
struct TreeShared {
  double grid[kMaxDepth][kMaxRanks];  // score of "rank 0 down to the slot above, then rank r"
  double spine[kMaxDepth + 1];        // score of rank 0 all the way to a depth
  double score[kPool];
  double floor[kMaxRows];  // the least score up to a node
  RankPath path[kPool];
  float log_prob[kMaxDepth][kMaxRanks];
  int32_t id[kMaxDepth][kMaxRanks];
  alignas(16) uint32_t bins[kBins];
  uint32_t offset[kBins + 1];
  uint32_t warp_sum[32];
  struct {
    int32_t base, count;
  } run[kTreeThreads];
  uint16_t order[kPool], open[kPool];      // open: nodes that end in a deviation and have descendants to look at
  int16_t parent[kPool], previous[kPool];  // slots; previous: the sibling before
  int16_t node_of[kPool];
  int16_t slot_of[kMaxRows];
  uint8_t depth[kPool], rank[kPool];
  int ranks[kMaxDepth];  // candidates of a slot before the first −inf or NaN
  int slots;             // before the first without candidates
  int unsorted, lowest, pooled, opened, limit, rows;
  uint32_t cost_bound;  // bits of a float
  float scale;
};

template <class Block>
class TreeSearch {
 public:
  __device__ TreeSearch(Block& block, TreeShared& shared, const TreeTask& task) : b_(block), s_(shared), task_(task) {}

  // log_prob and id are in place. Leaves rows, and by node slot_of, floor; by slot parent, previous, depth, rank, score
  // and node_of.
  __device__ void run() {
    inspect();
    if (!(exact() && search())) follow_frontier();
  }

 private:
  static constexpr int kEntries = kMaxDepth * kMaxRanks;

  __device__ void inspect() {
    b_.each([&](int t) {
      for (int i = t; i < kBins; i += Block::kThreads) s_.bins[i] = 0;
      if (t < kMaxDepth) s_.ranks[t] = task_.k;
      if (t > 0) return;
      s_.slots = task_.k > 0 ? task_.slots : 0;
      s_.unsorted = 0;
      s_.lowest = 1000;
      s_.pooled = 1;
      s_.opened = 0;
      s_.limit = kBins - 1;
      s_.rows = 1;
      s_.cost_bound = 0x7f800000;
      s_.slot_of[0] = s_.node_of[0] = 0;
      s_.depth[0] = s_.rank[0] = 0;
      s_.parent[0] = s_.previous[0] = -1;
      s_.score[0] = s_.floor[0] = s_.spine[0] = 0.0;
      s_.path[0] = {0, 0};
    });
    b_.each([&](int t) {
      for (int e = t; e < kEntries; e += Block::kThreads) {
        const int slot = e / kMaxRanks, rank = e % kMaxRanks;
        if (slot >= task_.slots || rank >= task_.k || s_.log_prob[slot][rank] > -kInfinity) continue;
        Block::lower(&s_.ranks[slot], rank);
        if (rank == 0) Block::lower(&s_.slots, slot);
      }
    });
    slots_ = s_.slots;
    b_.each([&](int t) {
      int lowest = 1000;
      for (int e = t; e < kEntries; e += Block::kThreads) {
        const int slot = e / kMaxRanks, rank = e % kMaxRanks;
        if (slot >= slots_ || rank >= s_.ranks[slot]) continue;
        const float x = s_.log_prob[slot][rank];
        if (x > 0 || (rank > 0 && x > s_.log_prob[slot][rank - 1])) s_.unsorted = 1;
        if (x != 0) lowest = min(lowest, lowest_exponent(x));
      }
      Block::lower_all(&s_.lowest, lowest);
      if (t > slots_ || t == 0) return;
      double sum = 0;
      for (int slot = 0; slot < t; ++slot) sum += s_.log_prob[slot][0];
      s_.spine[t] = sum;
    });
  }

  // Also fills the grid, and bounds the cost of the B-th best node by that of the worst in a rectangle of at least B
  // nodes: depths 1 … d, ranks up to one that they all have.
  __device__ bool exact() {
    first_ = task_.chain_first ? min(slots_, max(task_.budget, 0)) : 0;
    wanted_ = max(task_.budget, 0) - first_;
    b_.each([&](int t) {
      for (int e = t; e < slots_ * kMaxRanks; e += Block::kThreads) {
        const int slot = e / kMaxRanks, rank = e % kMaxRanks;
        if (rank < s_.ranks[slot]) s_.grid[slot][rank] = s_.spine[slot] + s_.log_prob[slot][rank];
      }
      const int depth = t - (Block::kThreads - kMaxDepth - 1);
      if (depth < 1 || depth > slots_) return;
      const int last = (wanted_ + depth - 1) / depth - (task_.chain_first ? 0 : 1);
      double worst = 0;
      for (int slot = 0; slot < depth && last >= 0; ++slot) {
        if (last >= s_.ranks[slot]) return;
        worst = max(worst, -(s_.spine[slot] + s_.log_prob[slot][last]));
      }
      Block::lower_bits(&s_.cost_bound, bits_of(static_cast<float>(worst)));
    });
    double most = 0;  // no sum on the way is larger
    for (int slot = 0; slot < slots_; ++slot) most -= s_.log_prob[slot][s_.ranks[slot] - 1];
    const int exponent = static_cast<int>(bits_of(static_cast<float>(most)) >> 23 & 255) - 127;
    float bound;
    const uint32_t bits = s_.cost_bound;
    memcpy(&bound, &bits, 4);
    scale_ = static_cast<float>(kBins - 2) / (bits == 0x7f800000 ? static_cast<float>(most) : bound);
    return s_.unsorted == 0 && exponent + 1 <= s_.lowest + 52;
  }

  // Ascending in the cost; the last bin holds all the rest, and everything where the scale is not finite.
  __device__ int bin_of(double score) const {
    return static_cast<int>(fminf(-static_cast<float>(score) * scale_, static_cast<float>(kBins - 1)));
  }

  __device__ bool search() {
    b_.each([&](int t) {
      for (int e = t; e < slots_ * kMaxRanks; e += Block::kThreads) {
        const int slot = e / kMaxRanks, rank = e % kMaxRanks;
        if (rank < s_.ranks[slot] && (rank > 0 || !task_.chain_first))
          Block::add(&s_.bins[bin_of(s_.grid[slot][rank])], 1u);
      }
      if (t == 0 && wanted_ == 0) s_.limit = -1;
    });
    if (wanted_ > 0) b_.raise(s_.bins, s_.offset, s_.warp_sum, wanted_, &s_.limit);
    expand(0, 1, false);
    int begin = 0, end = s_.opened;
    while (begin < end) {
      const int pooled = s_.pooled;
      b_.sync();  // all have read what the next round changes
      expand(begin, end, true);
      b_.raise(s_.bins, s_.offset, s_.warp_sum, wanted_, &s_.limit);
      if (s_.pooled > kPool) {  // again, with the limit that the round's own scores have set
        b_.sync();
        b_.each([&](int t) {
          if (t == 0) s_.pooled = pooled, s_.opened = end;
        });
        expand(begin, end, false);
        if (s_.pooled > kPool) return false;
      }
      begin = end;
      end = s_.opened;
    }
    place();
    return true;
  }

  // Candidates of slot `slot` behind a node of this base (its score less that of the spine at its depth), up to the
  // limit. They are the first ones, as bins ascend with the rank.
  __device__ int count_within(double base, int slot) const {
    int low = 0, high = s_.ranks[slot];
    if (bin_of(base + s_.grid[slot][0]) > s_.limit) return 0;
    while (low + 1 < high) {
      const int middle = (low + high) / 2;
      (bin_of(base + s_.grid[slot][middle]) <= s_.limit ? low : high) = middle;
    }
    return low + 1;
  }

  // Adds to the pool what hangs below open[begin … end) by a run of rank 0 and at most one deviation behind it; for
  // begin = 0 = end − 1, before anything is open, below the root.
  __device__ void expand(int begin, int end, bool counting) {
    constexpr int kNodes = Block::kThreads / kMaxDepth;
    const bool from_root = s_.pooled == 1;
    b_.sync();
    for (int first = begin; first < end; first += kNodes) {
      const int nodes = min(kNodes, end - first);
      b_.each([&](int t) {
        if (t >= nodes * kMaxDepth) return;
        const int from = from_root ? 0 : s_.open[first + t / kMaxDepth], slot = t % kMaxDepth;
        int count = 0;
        if (slot >= s_.depth[from] && slot < slots_)
          count = count_within(s_.score[from] - s_.spine[s_.depth[from]], slot);
        if (from_root && task_.chain_first && slot < first_) count = max(count, 1);
        s_.run[t].count = count;
        if (count > 0) s_.run[t].base = static_cast<int32_t>(Block::add(&s_.pooled, count));
      });
      int share = Block::kThreads / (nodes * kMaxDepth);  // threads of a (node, slot): 1, 2, 4 …
      while ((share & (share - 1)) != 0) share &= share - 1;
      b_.each([&](int t) {
        const int pair = t / share;
        if (pair >= nodes * kMaxDepth) return;
        const int from = from_root ? 0 : s_.open[first + pair / kMaxDepth];
        for (int rank = t % share; rank < s_.run[pair].count; rank += share) put(from, pair, rank, counting);
      });
    }
  }

  __device__ void put(int from, int pair, int rank, bool counting) {
    const int slot = pair % kMaxDepth, above = s_.depth[from], at = s_.run[pair].base + rank;
    const double score = (s_.score[from] - s_.spine[above]) + s_.grid[slot][rank];
    if (counting) Block::add(&s_.bins[bin_of(score)], 1u);
    if (at >= kPool) return;
    s_.score[at] = score;
    s_.path[at] = extend(s_.path[from], above, slot + 1, rank);
    s_.parent[at] = static_cast<int16_t>(slot == above ? from : s_.run[pair - 1].base);
    s_.previous[at] = static_cast<int16_t>(rank == 0 ? -1 : at - 1);
    s_.depth[at] = static_cast<uint8_t>(slot + 1);
    s_.rank[at] = static_cast<uint8_t>(rank);
    s_.node_of[at] = -1;
    if (rank > 0 && slot + 1 < slots_ && bin_of(score + s_.log_prob[slot + 1][0]) <= s_.limit)
      s_.open[Block::add(&s_.opened, 1)] = static_cast<uint16_t>(at);
  }

  __device__ bool on_spine(int slot) const { return s_.path[slot] == ones_to(s_.depth[slot]); }

  // Node numbers from the histogram's prefix sums; within a bin by comparing.
  __device__ void place() {
    const int limit = s_.limit;
    const uint32_t total = wanted_ > 0 ? s_.offset[limit + 1] : 0;
    b_.each([&](int t) {
      for (int at = 1 + t; at < s_.pooled; at += Block::kThreads) {
        if (task_.chain_first && on_spine(at)) {
          const int node = s_.depth[at];
          s_.node_of[at] = static_cast<int16_t>(node);
          s_.slot_of[node] = static_cast<int16_t>(at);
          s_.floor[node] = s_.score[at];
          continue;
        }
        const int bin = bin_of(s_.score[at]);
        if (bin <= limit) s_.order[s_.offset[bin] + Block::add(&s_.bins[bin], ~0u) - 1] = static_cast<uint16_t>(at);
      }
      if (t == 0) s_.rows = 1 + first_ + min(wanted_, static_cast<int>(total));
    });
    b_.each([&](int t) {
      for (uint32_t i = t; i < total; i += Block::kThreads) {
        const int at = s_.order[i], bin = bin_of(s_.score[at]);
        uint32_t node = s_.offset[bin];
        for (uint32_t j = s_.offset[bin]; j < s_.offset[bin + 1]; ++j) node += precedes(s_.order[j], at);
        if (node >= static_cast<uint32_t>(wanted_)) continue;
        node += 1 + static_cast<uint32_t>(first_);
        s_.node_of[at] = static_cast<int16_t>(node);
        s_.slot_of[node] = static_cast<int16_t>(at);
        s_.floor[node] = min(s_.score[at], s_.spine[first_]);
      }
    });
  }

  __device__ bool precedes(int a, int b) const {
    return s_.score[a] > s_.score[b] || (s_.score[a] == s_.score[b] && s_.path[a] < s_.path[b]);
  }

  // --- the frontier: one warp, whose lane 0 does what the host's loop does ---

  __device__ void follow_frontier() {
    b_.sync();
    if (b_.in_first_warp()) {
      int pooled = 1, waiting = 0, nodes = 0;
      int next = child(0, pooled);
      double least = kInfinity;
      while (task_.chain_first && next >= 0 && nodes < task_.budget) {
        least = append(next, ++nodes, least);
        waiting = wait(sibling(next, pooled), waiting);
        next = child(next, pooled);
      }
      if (!task_.chain_first) waiting = wait(next, waiting);
      while (nodes < task_.budget && waiting > 0) {
        const int best = take_best(waiting);
        --waiting;
        least = append(best, ++nodes, least);
        waiting = wait(sibling(best, pooled), waiting);
        waiting = wait(child(best, pooled), waiting);
      }
      if (b_.lane() == 0) s_.rows = nodes + 1;
    }
    b_.sync();
  }

  __device__ int wait(int candidate, int waiting) {
    if (candidate < 0) return waiting;
    if (b_.lane() == 0) s_.order[waiting] = static_cast<uint16_t>(candidate);
    return waiting + 1;
  }

  __device__ double append(int at, int node, double least) {
    b_.sync_warp();
    least = s_.score[at] < least ? s_.score[at] : least;
    if (b_.lane() == 0) {
      s_.node_of[at] = static_cast<int16_t>(node);
      s_.slot_of[node] = static_cast<int16_t>(at);
      s_.floor[node] = least;
    }
    return least;
  }

  // The sums must stay as they are, as other orders round otherwise; the comparisons are false for NaN too. −1: none.
  __device__ int child(int at, int& pooled) {
    const int slot = s_.depth[at];
    if (slot >= task_.slots || task_.k == 0) return -1;
    return add(s_.score[at] + s_.log_prob[slot][0], extend(s_.path[at], slot, slot + 1, 0), at, -1, slot + 1, 0,
               pooled);
  }

  __device__ int sibling(int at, int& pooled) {
    const int slot = s_.depth[at] - 1, rank = s_.rank[at] + 1;
    if (rank >= task_.k) return -1;
    const double score = (s_.score[at] - s_.log_prob[slot][rank - 1]) + s_.log_prob[slot][rank];
    RankPath path = s_.path[at];
    if (slot < 8)
      path.high += uint64_t{1} << (8 * (7 - slot));
    else
      path.low += uint64_t{1} << (8 * (15 - slot));
    return add(score, path, s_.parent[at], at, slot + 1, rank, pooled);
  }

  __device__ int add(double score, RankPath path, int parent, int previous, int depth, int rank, int& pooled) {
    if (!(score > -kInfinity)) return -1;
    const int at = pooled++;
    if (b_.lane() == 0) {
      s_.score[at] = score;
      s_.path[at] = path;
      s_.parent[at] = static_cast<int16_t>(parent);
      s_.previous[at] = static_cast<int16_t>(previous);
      s_.depth[at] = static_cast<uint8_t>(depth);
      s_.rank[at] = static_cast<uint8_t>(rank);
      s_.node_of[at] = -1;
    }
    b_.sync_warp();
    return at;
  }

  // Takes out the one that precedes all others.
  __device__ int take_best(int waiting) {
    b_.sync_warp();
    int best = -1;
    for (int i = b_.lane(); i < waiting; i += Block::kLanes)
      if (best < 0 || precedes(s_.order[i], s_.order[best])) best = i;
    const uint64_t key = best < 0 ? 0 : order_key(s_.score[s_.order[best]]);
    uint32_t equal = b_.holders_of_largest(key);
    int winner = -1;
    for (; equal != 0; equal &= equal - 1) {
      const int i = b_.from_lowest(best, equal);
      if (winner < 0 || s_.path[s_.order[i]] < s_.path[s_.order[winner]]) winner = i;
    }
    const int at = s_.order[winner];
    b_.sync_warp();
    if (b_.lane() == 0) s_.order[winner] = s_.order[waiting - 1];
    return at;
  }

  static constexpr double kInfinity = __builtin_huge_val();

  Block& b_;
  TreeShared& s_;
  const TreeTask task_;
  int slots_ = 0;
  int first_ = 0;   // nodes that the chain has taken
  int wanted_ = 0;  // nodes by score
  float scale_ = 0;
};

}  // namespace ddtree::cuda
