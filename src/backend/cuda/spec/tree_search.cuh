// The best-first tree of one stream, built by one thread block in shared memory. Gives exactly the nodes, the order and
// the sums of build_tree (spec/tree.h).
//
// Where every sum is exact (checked: all log-probabilities are multiples of a power of two that leaves their largest
// sum below 2^51 of them) and no log-probability is positive or larger than the one before it, the first B pops of a
// heap are simply the B best nodes, and a node's score does not depend on the order of adding: costs are integers, in
// units of that power. Then nodes are found in rounds by their number of deviations from "rank 0": round j finds the
// nodes whose rank path has j ranks above 0 and ends in one of them, with the runs of rank 0 behind those of the round
// before. A path with j deviations comes after 2^j − 1 others, so there are at most 8 rounds, where levels would be 16.
// A histogram of all costs seen says which bin holds the B-th best so far; nothing beyond that bin is kept. Its prefix
// sums then place every node, but for the order within a bin.
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
inline constexpr int kOpenAtOnce = 128;
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

// 2^exponent, for exponents of normal numbers.
__host__ __device__ inline double power_of_two(int exponent) {
  const uint64_t bits = static_cast<uint64_t>(exponent + 1023) << 52;
  double x;
  memcpy(&x, &bits, 8);
  return x;
}

// What the block shares. Slots of the pool are candidates; slot 0 is the root.
struct TreeShared {
  int64_t own[kMaxDepth][kMaxRanks + 1];  // cost of a slot's ranks, kNever behind the last; one more: no bank conflicts
  int64_t spine[kMaxDepth + 2];           // cost of rank 0 all the way to a depth
  union {
    int64_t cost[kPool];  // of the search
    double score[kPool];  // of the frontier
  };
  uint64_t key[kMaxRows + 1];  // of what waits in the frontier
  double log_sum[kMaxRows];    // of a node, and the least up to it
  double floor[kMaxRows];
  RankPath path[kPool];
  float log_prob[kMaxDepth][kMaxRanks];
  int32_t id[kMaxDepth][kMaxRanks];
  alignas(16) uint32_t bins[kBins];
  alignas(16) uint32_t offset[kBins + 4];
  alignas(16) uint32_t warp_sum[32];
  uint16_t run[kOpenAtOnce * kMaxDepth];   // by open node and slot: where its candidates begin
  uint16_t owner[kPool];                   // the (open node, slot) of a candidate, where a run begins
  uint32_t begins[kPool / 32];             // where runs begin, a bit a slot
  uint16_t order[kPool], open[kPool];      // open: nodes that end in a deviation and have descendants to look at
  int16_t parent[kPool], previous[kPool];  // slots; previous: the sibling before
  int16_t from[kPool];                     // the node above that ends in a deviation, or the root
  int16_t node_of[kPool];
  int16_t slot_of[kMaxRows];
  uint8_t depth[kPool], rank[kPool];
  int ranks[kMaxDepth];  // candidates of a slot before the first −inf or NaN
  int slots;             // before the first without candidates
  int unsorted, lowest, pooled, opened, limit, rows;
  int shift;  // log2 of a bin's width
};

template <class Block>
class TreeSearch {
 public:
  __device__ TreeSearch(Block& block, TreeShared& shared) : b_(block), s_(shared) {}

  // Needs nothing of the task. All threads join after it.
  __device__ void clear() {
    b_.each([&](int t) {
      for (int i = t; i < kBins; i += Block::kThreads) s_.bins[i] = 0;
      if (t < kMaxDepth) s_.ranks[t] = kMaxRanks;
      if (t < kPool / 32) s_.begins[t] = 0;
      if (t > 0) return;
      s_.slots = kMaxDepth;
      s_.unsorted = 0;
      s_.lowest = kNone;
      s_.pooled = 1;
      s_.opened = 0;
      s_.limit = kBins - 1;
      s_.rows = 1;
      s_.shift = 63;
      s_.slot_of[0] = s_.node_of[0] = 0;
      s_.depth[0] = s_.rank[0] = 0;
      s_.parent[0] = s_.previous[0] = s_.from[0] = -1;
      s_.cost[0] = s_.spine[0] = 0;
      s_.log_sum[0] = s_.floor[0] = 0.0;
      s_.path[0] = {0, 0};
    });
  }

  // A thread calls it for every candidate that it puts in place. Candidates beyond the task may be anything.
  __device__ void put_candidate(int slot, int rank, float log_prob, int32_t id) {
    s_.log_prob[slot][rank] = log_prob;
    s_.id[slot][rank] = id;
    if (log_prob > -kInfinity) return;
    Block::lower(&s_.ranks[slot], rank);
    if (rank == 0) Block::lower(&s_.slots, slot);
  }

  // All candidates are in place. Leaves rows, and by node slot_of, log_sum and floor; by slot parent, previous, depth,
  // rank and node_of.
  __device__ void run(const TreeTask& task) {
    task_ = task;
    slots_ = task.k > 0 ? min(s_.slots, task.slots) : 0;
    if (!(exact() && search())) follow_frontier();
  }

 private:
  static constexpr int kEntries = kMaxDepth * kMaxRanks, kNone = 1000;
  static constexpr int64_t kNever = int64_t{1} << 60;  // beyond every cost

  __device__ int ranks(int slot) const { return min(s_.ranks[slot], task_.k); }

  // Whether sums are exact and descend. Then fills own and spine, and bounds the cost of the B-th best node by that of
  // the worst in a rectangle of at least B nodes: depths 1 … d, ranks up to one that they all have.
  __device__ bool exact() {
    first_ = task_.chain_first ? min(slots_, task_.budget) : 0;
    wanted_ = task_.budget - first_;
    b_.each([&](int t) {
      int lowest = kNone;
      for (int e = t; e < kEntries; e += Block::kThreads) {
        const int slot = e / kMaxRanks, rank = e % kMaxRanks;
        if (slot >= slots_ || rank >= ranks(slot)) continue;
        const float x = s_.log_prob[slot][rank];
        if (x > 0 || (rank > 0 && x > s_.log_prob[slot][rank - 1])) s_.unsorted = 1;
        if (x != 0) lowest = min(lowest, lowest_exponent(x));
      }
      Block::lower_all(&s_.lowest, lowest);
    });
    lowest_ = s_.lowest == kNone ? 0 : s_.lowest;
    float most = 0;  // no sum on the way is larger, but for roundings of this one
    for (int slot = 0; slot < kMaxDepth; ++slot)
      if (slot < slots_) most -= s_.log_prob[slot][ranks(slot) - 1];
    const int exponent = static_cast<int>(bits_of(most) >> 23 & 255) - 127;
    if (s_.unsorted != 0 || exponent + 2 > lowest_ + 52) return false;

    const double units = power_of_two(-lowest_);
    b_.each([&](int t) {
      for (int e = t; e < slots_ * kMaxRanks; e += Block::kThreads) {
        const int slot = e / kMaxRanks, rank = e % kMaxRanks;
        s_.own[slot][rank] = rank < ranks(slot) ? static_cast<int64_t>(-s_.log_prob[slot][rank] * units) : kNever;
      }
    });
    b_.each([&](int t) {
      if (t == 0 || t > kMaxDepth) return;
      int64_t sum = 0;
      for (int slot = 0; slot < kMaxDepth; ++slot) sum += slot < min(t, slots_) ? s_.own[slot][0] : 0;
      s_.spine[t] = sum;
    });
    b_.each([&](int t) {
      if (t >= 32) return;
      const int depth = t + 1, last = (wanted_ + depth - 1) / depth - (task_.chain_first ? 0 : 1);
      int64_t worst = depth <= slots_ ? 0 : kNever;
      for (int slot = 0; slot < kMaxDepth; ++slot)
        worst =
            max(worst, slot < min(depth, slots_) ? s_.spine[slot] + s_.own[slot][max(0, min(last, kMaxRanks - 1))] : 0);
      if (last >= kMaxRanks) worst = kNever;
      Block::lower_all(&s_.shift, shift_for(min(worst, static_cast<int64_t>(most * 1.001f * units) + 1)));
    });
    shift_ = s_.shift;
    return true;
  }

  // The least one that keeps the cost out of the last bin.
  __device__ static int shift_for(int64_t cost) {
    int shift = 0;
    for (int step = 32; step > 0; step /= 2)
      if (cost >> (shift + step - 1) >= kBins - 1) shift += step;
    return shift;
  }

  // Ascending in the cost; the last bin holds all the rest.
  __device__ int bin_of(int64_t cost) const { return static_cast<int>(min(cost >> shift_, int64_t{kBins - 1})); }
  __device__ void count(int64_t cost) {
    const int bin = bin_of(cost);
    if (bin == kBins - 1)
      Block::add_one(&s_.bins[bin]);  // of all threads at once, so that a crowd does not queue
    else
      Block::add(&s_.bins[bin], 1u);
  }
  // Costs below it are within the limit.
  __device__ int64_t end_of_limit() const {
    return s_.limit == kBins - 1 ? kNever : static_cast<int64_t>(s_.limit + 1) << shift_;
  }
  __device__ void raise() { b_.raise(s_.bins, s_.offset, s_.warp_sum, wanted_, &s_.limit); }

  __device__ bool search() {
    b_.each([&](int t) {
      for (int e = t; e < slots_ * kMaxRanks; e += Block::kThreads) {
        const int slot = e / kMaxRanks, rank = e % kMaxRanks;
        if (rank < ranks(slot) && (rank > 0 || !task_.chain_first)) count(s_.spine[slot] + s_.own[slot][rank]);
      }
      if (t == 0 && wanted_ == 0) s_.limit = -1;
    });
    if (wanted_ > 0) raise();
    expand_root();
    if (s_.pooled > kPool) return false;
    int begin = 0, end = s_.opened;
    while (begin < end) {
      const int pooled = s_.pooled;
      b_.sync();  // all have read what the next round changes
      expand(begin, end, true);
      raise();
      const int room = kPool - (kMaxNodes + 1);  // what later rounds may need
      if (s_.pooled > max(room, pooled)) {       // again, with the limit that the round's own scores have set
        b_.sync();
        b_.each([&](int t) {
          if (t == 0) s_.pooled = pooled, s_.opened = end;
          if (t < kPool / 32) s_.begins[t] &= t * 32 >= pooled ? 0 : ~0u >> max(0, 32 - (pooled - t * 32));
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

  // Adds to the pool what hangs below the root by a run of rank 0 and at most one deviation, within the limit.
  __device__ void expand_root() {
    const int64_t end = end_of_limit();
    b_.each([&](int t) {
      if (t >= 32) return;
      int within = t < slots_ ? count_below(t, end - s_.spine[t]) : 0;
      if (task_.chain_first && t < first_) within = max(within, 1);
      const int at = Block::allocate(&s_.pooled, within);
      if (t < kMaxDepth) s_.run[t] = static_cast<uint16_t>(at), s_.warp_sum[t] = static_cast<uint32_t>(within);
    });
    b_.each([&](int t) {
      for (int e = t; e < slots_ * kMaxRanks; e += Block::kThreads) {
        const int slot = e / kMaxRanks, rank = e % kMaxRanks, at = s_.run[slot] + rank;
        if (rank < static_cast<int>(s_.warp_sum[slot]) && at < kPool) put(0, slot, rank, at, end);
      }
    });
  }

  // How many ranks of a slot cost less than `end`: the first ones.
  __device__ int count_below(int slot, int64_t end) const {
    const int64_t* own = s_.own[slot];
    int below = 0;
    for (int step = 16; step > 0; step /= 4)
      below += step *
               ((own[below + step - 1] < end) + (own[below + 2 * step - 1] < end) + (own[below + 3 * step - 1] < end));
    return below + (own[below] < end);
  }

  // The same below open[begin … end).
  __device__ void expand(int begin, int end, bool counting) {
    const int64_t limit = end_of_limit();
    for (int first = begin; first < end; first += kOpenAtOnce) {
      const int pairs = min(kOpenAtOnce, end - first) * kMaxDepth, pooled = s_.pooled;
      b_.sync();
      b_.each([&](int t) {
        for (int pair = t; pair < (pairs + 31) / 32 * 32; pair += Block::kThreads)
          claim(pair < pairs ? s_.open[first + pair / kMaxDepth] : -1, pair, limit, counting);
      });
      b_.each([&](int t) {
        for (int at = pooled + t; at < min(s_.pooled, kPool); at += Block::kThreads) {
          const int pair = owner_of(at);
          const int64_t cost = put(s_.open[first + pair / kMaxDepth], pair, at - s_.run[pair], at, limit);
          if (counting) count(cost);
        }
      });
    }
  }

  // Takes room in the pool for the candidates of one slot behind `from` that are within the limit. Whole warps call it;
  // −1: nobody's.
  __device__ void claim(int from, int pair, int64_t limit, bool counting) {
    const int slot = pair % kMaxDepth, above = from < 0 ? kMaxDepth : s_.depth[from];
    int64_t base = 0;
    int within = 0;
    if (slot >= above && slot < slots_) {
      base = s_.cost[from] - s_.spine[above] + s_.spine[slot];
      within = count_below(slot, limit - base);
    }
    const int at = Block::allocate(&s_.pooled, within);
    if (within == 0) return;
    s_.run[pair] = static_cast<uint16_t>(min(at, kPool));
    if (at < kPool) {
      s_.owner[at] = static_cast<uint16_t>(pair);
      Block::set(&s_.begins[at / 32], 1u << at % 32);
    }
    if (!counting) return;
    for (int rank = max(0, kPool - at); rank < within; ++rank) count(base + s_.own[slot][rank]);
  }

  __device__ int owner_of(int at) const {
    int word = at / 32;
    uint32_t begins = s_.begins[word] & (~0u >> (31 - at % 32));
    while (begins == 0) begins = s_.begins[--word];
    return s_.owner[word * 32 + Block::highest_bit(begins)];
  }

  __device__ int64_t put(int from, int pair, int rank, int at, int64_t limit) {
    const int slot = pair % kMaxDepth, above = s_.depth[from];
    const int64_t cost = s_.cost[from] - s_.spine[above] + s_.spine[slot] + s_.own[slot][rank];
    s_.cost[at] = cost;
    s_.parent[at] = static_cast<int16_t>(slot == above ? from : s_.run[pair - 1]);
    s_.previous[at] = static_cast<int16_t>(rank == 0 ? -1 : at - 1);
    s_.from[at] = static_cast<int16_t>(from);
    s_.depth[at] = static_cast<uint8_t>(slot + 1);
    s_.rank[at] = static_cast<uint8_t>(rank);
    if (rank > 0 && slot + 1 < slots_ && cost + (s_.spine[slot + 2] - s_.spine[slot + 1]) < limit)
      s_.open[Block::add_one(&s_.opened)] = static_cast<uint16_t>(at);
    return cost;
  }

  __device__ RankPath path_of(int at) const {
    RankPath path = {0, 0};
    for (; at > 0; at = s_.from[at]) {
      const int above = s_.depth[s_.from[at]];
      const RankPath part = extend({0, 0}, above, s_.depth[at], s_.rank[at]);
      path.high |= part.high;
      path.low |= part.low;
    }
    return path;
  }

  __device__ void number(int at, int node, int64_t cost) {
    s_.node_of[at] = static_cast<int16_t>(node);
    s_.slot_of[node] = static_cast<int16_t>(at);
    const double units = power_of_two(lowest_);
    s_.log_sum[node] = static_cast<double>(-cost) * units;
    s_.floor[node] =
        task_.chain_first ? static_cast<double>(-max(cost, s_.spine[min(first_, node)])) * units : s_.log_sum[node];
  }

  // Node numbers from the histogram's prefix sums; within a bin by comparing.
  __device__ void place() {
    const int limit = s_.limit;
    const uint32_t total = wanted_ > 0 ? s_.offset[limit + 1] : 0;
    b_.each([&](int t) {
      for (int at = 1 + t; at < s_.pooled; at += Block::kThreads) {
        if (task_.chain_first && s_.from[at] == 0 && s_.rank[at] == 0) {
          number(at, s_.depth[at], s_.cost[at]);
          continue;
        }
        const int bin = bin_of(s_.cost[at]);
        if (bin > limit) continue;
        s_.order[s_.offset[bin] + Block::add(&s_.bins[bin], ~0u) - 1] = static_cast<uint16_t>(at);
        if (s_.offset[bin + 1] > s_.offset[bin] + 1) s_.path[at] = path_of(at);
      }
      if (t == 0) s_.rows = 1 + first_ + min(wanted_, static_cast<int>(total));
    });
    b_.each([&](int t) {
      for (uint32_t i = t; i < total; i += Block::kThreads) {
        const int at = s_.order[i];
        const int64_t cost = s_.cost[at];
        const int bin = bin_of(cost);
        const uint32_t bin_begin = s_.offset[bin], bin_end = s_.offset[bin + 1];
        uint32_t node = bin_begin;
        for (uint32_t j = bin_begin; j < bin_end; ++j) {
          const int other = s_.order[j];
          const int64_t other_cost = s_.cost[other];
          node += other_cost < cost;
          if (other_cost == cost && other != at) node += s_.path[other] < s_.path[at];
        }
        if (node < static_cast<uint32_t>(wanted_)) number(at, static_cast<int>(node) + 1 + first_, cost);
      }
    });
  }

  // --- the frontier: one warp, whose lane 0 does what the host's loop does ---

  __device__ void follow_frontier() {
    b_.sync();
    if (b_.in_first_warp()) {
      int pooled = 1, waiting = 0, nodes = 0;
      if (b_.lane() == 0) s_.score[0] = 0.0;
      b_.sync_warp();
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
    if (b_.lane() == 0) {
      s_.order[waiting] = static_cast<uint16_t>(candidate);
      s_.key[waiting] = order_key(s_.score[candidate]);
    }
    return waiting + 1;
  }

  __device__ double append(int at, int node, double least) {
    b_.sync_warp();
    const double score = s_.score[at];
    least = score < least ? score : least;
    if (b_.lane() == 0) {
      s_.node_of[at] = static_cast<int16_t>(node);
      s_.slot_of[node] = static_cast<int16_t>(at);
      s_.log_sum[node] = score;
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
    }
    b_.sync_warp();
    return at;
  }

  // Takes out the one that precedes all others.
  __device__ int take_best(int waiting) {
    b_.sync_warp();
    int best = -1;
    uint64_t key = 0;
    for (int i = b_.lane(); i < waiting; i += Block::kLanes) {
      const uint64_t other = s_.key[i];
      if (best >= 0 && (other < key || (other == key && s_.path[s_.order[best]] < s_.path[s_.order[i]]))) continue;
      best = i;
      key = other;
    }
    uint32_t equal = b_.holders_of_largest(key);
    int winner = -1;
    for (; equal != 0; equal &= equal - 1) {
      const int i = b_.from_lowest(best, equal);
      if (winner < 0 || s_.path[s_.order[i]] < s_.path[s_.order[winner]]) winner = i;
    }
    const int at = s_.order[winner];
    b_.sync_warp();
    if (b_.lane() == 0) {
      s_.order[winner] = s_.order[waiting - 1];
      s_.key[winner] = s_.key[waiting - 1];
    }
    return at;
  }

  static constexpr double kInfinity = __builtin_huge_val();

  Block& b_;
  TreeShared& s_;
  TreeTask task_;
  int slots_ = 0;
  int first_ = 0;   // nodes that the chain has taken
  int wanted_ = 0;  // nodes by score
  int lowest_ = 0;  // exponent of the unit of costs
  int shift_ = 0;   // a bin is 2^shift_ units
};

}  // namespace ddtree::cuda
