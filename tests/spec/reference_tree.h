// Slow and obvious restatements of the best-first tree, to compare the builder with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <tuple>
#include <vector>

#include "spec/tree.h"

namespace ddtree::testing {

// Candidates that own their arrays.
struct Candidates {
  int slots, k;
  std::vector<float> log_prob;
  std::vector<int32_t> id;

  Candidates(int slots, int k) : slots(slots), k(k), log_prob(slots * k), id(slots * k) {
    for (int s = 0; s < slots; ++s)
      for (int r = 0; r < k; ++r) id[s * k + r] = 1000 * (s + 1) + (r * 37 + 11) % 101;  // distinct within a slot
  }
  CandidateView view() const { return {slots, k, log_prob.data(), id.data()}; }
  float lp(int slot, int rank) const { return log_prob[slot * k + rank]; }
  void sort() {
    for (int s = 0; s < slots; ++s)
      std::sort(log_prob.begin() + s * k, log_prob.begin() + (s + 1) * k, std::greater<>());
  }
};

// A normalised drafter distribution: random logits of the given spread over a vocabulary of 4 k.
inline Candidates random_candidates(std::mt19937& random, int slots, int k, float spread) {
  Candidates c(slots, k);
  std::normal_distribution<double> normal(0, spread);
  for (int s = 0; s < slots; ++s) {
    std::vector<double> logit(4 * k);
    for (double& x : logit) x = normal(random);
    std::sort(logit.begin(), logit.end(), std::greater<>());
    double sum = 0;
    for (const double x : logit) sum += std::exp(x - logit[0]);
    for (int r = 0; r < k; ++r) c.log_prob[s * k + r] = static_cast<float>(logit[r] - logit[0] - std::log(sum));
  }
  return c;
}

// Multiples of 1/8 down to −range / 8: every sum is exact, and most of them tie.
inline Candidates tied_candidates(std::mt19937& random, int slots, int k, int range) {
  Candidates c(slots, k);
  for (float& lp : c.log_prob) lp = -static_cast<float>(random() % (range + 1)) / 8;
  c.sort();
  return c;
}

// Each slot with a magnitude of its own, from 1e-17 to 10: sums round, to values that depend on the order of adding,
// and often to ties.
inline Candidates rounding_candidates(std::mt19937& random, int slots, int k) {
  Candidates c(slots, k);
  std::uniform_real_distribution<float> exponent(-39, 2), mantissa(1, 2);
  for (int s = 0; s < slots; ++s) {
    const float magnitude = random() % 2 == 0 ? 1.0f : std::exp(exponent(random));
    for (int r = 0; r < k; ++r) c.log_prob[s * k + r] = -magnitude * mantissa(random);
  }
  c.sort();
  return c;
}

struct Node {
  std::vector<int> ranks;  // per depth
  int parent = -1;
  double log_prob = 0;

  int depth() const { return static_cast<int>(ranks.size()); }
};

// The published algorithm: a priority queue of (−log-probability, ranks, parent, depth, rank, log-probability), its
// siblings pushed before its first child. Chain first: the chain's nodes are popped before the queue decides.
inline std::vector<Node> heap_tree(const Candidates& c, int budget, bool chain_first = false) {
  using Entry = std::tuple<double, std::vector<int>, int, int, int, double>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;
  std::vector<Node> nodes(1);
  if (budget <= 0 || c.slots == 0) return nodes;
  const int k = std::min(budget, c.k);
  Entry first = {-double{c.lp(0, 0)}, {0}, 0, 1, 0, double{c.lp(0, 0)}};
  const auto visit = [&](const Entry& entry) {
    const auto& [negative, ranks, parent, depth, rank, log_prob] = entry;
    const int index = static_cast<int>(nodes.size());
    nodes.push_back({ranks, parent, log_prob});
    if (rank + 1 < k) {
      std::vector<int> sibling = ranks;
      ++sibling.back();
      double next = log_prob;
      next -= c.lp(depth - 1, rank);
      next += c.lp(depth - 1, rank + 1);
      heap.emplace(-next, sibling, parent, depth, rank + 1, next);
    }
    std::vector<int> child = ranks;
    child.push_back(0);
    const double next = depth < c.slots ? log_prob + c.lp(depth, 0) : 0.0;
    return Entry{-next, child, index, depth + 1, 0, next};
  };
  if (chain_first) {
    for (int d = 1; d <= c.slots && static_cast<int>(nodes.size()) <= budget; ++d) first = visit(first);
  } else {
    heap.push(first);
  }
  while (!heap.empty() && static_cast<int>(nodes.size()) <= budget) {
    const Entry top = heap.top();
    heap.pop();
    const Entry child = visit(top);
    if (std::get<3>(child) <= c.slots) heap.push(child);
  }
  return nodes;
}

// By definition: all prefixes, the most probable first, ties by rank path. Only for few slots and candidates, and for
// log-probabilities whose sums are exact.
inline std::vector<Node> best_prefixes(const Candidates& c, int budget) {
  std::vector<Node> all = {Node{}};
  for (size_t i = 0; i < all.size(); ++i)
    for (int r = 0; r < c.k && all[i].depth() < c.slots; ++r) {
      Node child = all[i];
      child.log_prob += c.lp(child.depth(), r);
      child.ranks.push_back(r);
      all.push_back(child);
    }
  std::sort(all.begin() + 1, all.end(), [](const Node& a, const Node& b) {
    return a.log_prob != b.log_prob ? a.log_prob > b.log_prob : a.ranks < b.ranks;
  });
  all.resize(std::min<size_t>(all.size(), budget + 1));
  return all;
}

inline std::vector<int> rank_path(const Tree& tree, int node) {
  std::vector<int> ranks;
  for (; node > 0; node = tree.parent[node]) ranks.insert(ranks.begin(), tree.rank[node]);
  return ranks;
}

}  // namespace ddtree::testing
