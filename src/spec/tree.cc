#include "spec/tree.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "base/check.h"

namespace ddtree {
namespace {

// One byte per slot, most significant first, holding rank + 1, and zeros past the end: integers in this form compare as
// the rank paths do, a prefix before its extensions.
using RankPath = unsigned __int128;
static_assert(kMaxDepth <= static_cast<int>(sizeof(RankPath)) && kMaxRanks < 255);

constexpr RankPath path_unit(int depth) { return RankPath{1} << (8 * (kMaxDepth - depth)); }

// A node that may come next. Its token and parent follow from where it hangs.
struct Candidate {
  RankPath ranks;
  double log_prob;
  int16_t from;  // rank 0: the parent; else the previous sibling
  int16_t depth;
  int16_t rank;
};

bool precedes(const Candidate& a, const Candidate& b) {
  return a.log_prob > b.log_prob || (a.log_prob == b.log_prob && a.ranks < b.ranks);
}

// A binary heap whose top precedes all others. Each node takes one candidate out and puts at most two in.
class Frontier {
 public:
  bool empty() const { return size_ == 0; }

  void push(const Candidate& candidate) {
    int hole = size_++;
    while (hole > 0 && precedes(candidate, heap_[(hole - 1) / 2])) {
      heap_[hole] = heap_[(hole - 1) / 2];
      hole = (hole - 1) / 2;
    }
    heap_[hole] = candidate;
  }

  Candidate pop() {
    const Candidate top = heap_[0];
    const Candidate& last = heap_[--size_];
    int hole = 0;
    for (int child = 1; child < size_; child = 2 * hole + 1) {
      if (child + 1 < size_ && precedes(heap_[child + 1], heap_[child])) ++child;
      if (!precedes(heap_[child], last)) break;
      heap_[hole] = heap_[child];
      hole = child;
    }
    heap_[hole] = last;
    return top;
  }

 private:
  std::array<Candidate, kMaxRows + 1> heap_;
  int size_ = 0;
};

class Builder {
 public:
  Builder(const CandidateView& candidates, int max_depth, Tree& tree)
      : candidates_(candidates), depth_limit_(std::min(candidates.slots, max_depth)), tree_(tree) {}

  void build(int budget, bool chain_first) {
    Candidate chain;
    bool more = child_of(0, 0, chain);
    while (chain_first && more && tree_.nodes() < budget) {
      const int node = append(chain);
      Candidate sibling;
      if (sibling_of(chain, node, sibling)) frontier_.push(sibling);
      more = child_of(node, chain.ranks, chain);
    }
    if (!chain_first && more) frontier_.push(chain);
    while (tree_.nodes() < budget && !frontier_.empty()) {
      const Candidate best = frontier_.pop();
      const int node = append(best);
      Candidate next;
      if (sibling_of(best, node, next)) frontier_.push(next);
      if (child_of(node, best.ranks, next)) frontier_.push(next);
    }
  }

 private:
  float log_prob(int depth, int rank) const { return candidates_.log_prob[(depth - 1) * candidates_.k + rank]; }

  // The comparisons with −inf below are also false for NaN. The sums must stay as they are: other orders round
  // otherwise.
  bool child_of(int node, RankPath ranks, Candidate& out) const {
    const int depth = tree_.depth[node] + 1;
    if (depth > depth_limit_ || candidates_.k == 0) return false;
    out = {ranks | path_unit(depth), tree_.log_prob[node] + log_prob(depth, 0), static_cast<int16_t>(node),
           static_cast<int16_t>(depth), 0};
    return out.log_prob > kImpossible;
  }

  bool sibling_of(const Candidate& c, int node, Candidate& out) const {
    if (c.rank + 1 >= candidates_.k) return false;
    out = {c.ranks + path_unit(c.depth), (c.log_prob - log_prob(c.depth, c.rank)) + log_prob(c.depth, c.rank + 1),
           static_cast<int16_t>(node), c.depth, static_cast<int16_t>(c.rank + 1)};
    return out.log_prob > kImpossible;
  }

  int append(const Candidate& c) {
    const int node = tree_.rows++;
    tree_.token[node] = candidates_.id[(c.depth - 1) * candidates_.k + c.rank];
    tree_.parent[node] = c.rank == 0 ? c.from : tree_.parent[c.from];
    tree_.depth[node] = c.depth;
    tree_.rank[node] = c.rank;
    tree_.log_prob[node] = c.log_prob;
    tree_.first_child[node] = -1;
    tree_.next_sibling[node] = -1;
    (c.rank == 0 ? tree_.first_child : tree_.next_sibling)[c.from] = static_cast<int16_t>(node);
    return node;
  }

  static constexpr double kImpossible = -std::numeric_limits<double>::infinity();
  const CandidateView& candidates_;
  const int depth_limit_;
  Tree& tree_;
  Frontier frontier_;
};

void reset(Tree& tree, int32_t root_token) {
  tree.token[0] = root_token;
  tree.parent[0] = -1;
  tree.depth[0] = 0;
  tree.rank[0] = 0;
  tree.first_child[0] = -1;
  tree.next_sibling[0] = -1;
  tree.log_prob[0] = 0.0;
  tree.rows = 1;
}

Error malformed(int node, const std::string& what) {
  return {Code::kCorrupt, "draft tree: node " + std::to_string(node) + ": " + what};
}

}  // namespace

void build_tree(const CandidateView& candidates, int32_t root_token, int budget, const TreeOptions& options,
                Tree& out) {
  CHECK(candidates.slots >= 0 && candidates.slots <= kMaxDepth);
  CHECK(candidates.k >= 0 && candidates.k <= kMaxRanks);
  CHECK_LE(budget, kMaxNodes);
  reset(out, root_token);
  if (budget > 0) Builder(candidates, options.max_depth, out).build(budget, options.chain_first);
}

Tree root_tree(int32_t root_token) {
  Tree tree;
  reset(tree, root_token);
  return tree;
}

void trim(Tree& tree, int nodes) {
  CHECK_GE(nodes, 0);
  if (nodes >= tree.nodes()) return;
  tree.rows = nodes + 1;
  for (int i = 0; i < tree.rows; ++i) {
    if (tree.first_child[i] > nodes) tree.first_child[i] = -1;
    if (tree.next_sibling[i] > nodes) tree.next_sibling[i] = -1;
  }
}

void ancestor_words(const Tree& tree, std::span<AncestorWords> out) {
  CHECK_EQ(out.size(), static_cast<size_t>(tree.size()));
  for (int i = 0; i < tree.size(); ++i) {
    out[i] = i == 0 ? AncestorWords{} : out[tree.parent[i]];
    out[i][i / 64] |= uint64_t{1} << (i % 64);
  }
}

std::vector<int> trim_to_rows(std::span<const Tree* const> trees, int max_rows) {
  std::vector<int> kept(trees.size());
  int64_t wanted = 0;
  for (size_t t = 0; t < trees.size(); ++t) {
    kept[t] = trees[t]->nodes();
    wanted += trees[t]->size();
  }
  if (wanted <= max_rows) return kept;

  using Head = std::pair<double, int>;  // a tree's next log-probability; minus its index, so that ties favour low ones
  std::vector<Head> heads;
  for (size_t t = 0; t < trees.size(); ++t) {
    kept[t] = 0;
    if (trees[t]->nodes() > 0) heads.emplace_back(trees[t]->log_prob[1], -static_cast<int>(t));
  }
  std::make_heap(heads.begin(), heads.end());
  for (int64_t room = max_rows - static_cast<int64_t>(trees.size()); room > 0 && !heads.empty(); --room) {
    std::pop_heap(heads.begin(), heads.end());
    const int t = -heads.back().second;
    heads.pop_back();
    if (++kept[t] == trees[t]->nodes()) continue;
    heads.emplace_back(trees[t]->log_prob[kept[t] + 1], -t);
    std::push_heap(heads.begin(), heads.end());
  }
  return kept;
}

Status validate(const Tree& tree) {
  if (tree.rows < 1 || tree.rows > kMaxRows)
    return Error{Code::kCorrupt,
                 "draft tree: " + std::to_string(tree.rows) + " rows, but a tree has 1 to " + std::to_string(kMaxRows)};
  if (tree.parent[0] != -1 || tree.depth[0] != 0 || tree.next_sibling[0] != -1)
    return malformed(0, "not a root: it has a parent, a depth or a sibling");
  // The links that the parents imply: children in ascending order.
  std::array<int16_t, kMaxRows> first, next, last;
  first.fill(-1);
  next.fill(-1);
  last.fill(-1);
  for (int i = 1; i < tree.rows; ++i) {
    const int parent = tree.parent[i];
    if (parent < 0 || parent >= i) return malformed(i, "its parent " + std::to_string(parent) + " does not precede it");
    if (tree.depth[i] != tree.depth[parent] + 1 || tree.depth[i] > kMaxDepth)
      return malformed(i, "depth " + std::to_string(tree.depth[i]) + " under a parent of depth " +
                              std::to_string(tree.depth[parent]) + " (limit " + std::to_string(kMaxDepth) + ")");
    const int previous = last[parent];
    if (tree.rank[i] != (previous < 0 ? 0 : tree.rank[previous] + 1))
      return malformed(i, "rank " + std::to_string(tree.rank[i]) + " is not the next among its siblings");
    for (int sibling = first[parent]; sibling >= 0; sibling = next[sibling])
      if (tree.token[sibling] == tree.token[i]) return malformed(i, "a sibling has its token");
    if (!(tree.log_prob[i] > -std::numeric_limits<double>::infinity())) return malformed(i, "no log-probability");
    (previous < 0 ? first[parent] : next[previous]) = static_cast<int16_t>(i);
    last[parent] = static_cast<int16_t>(i);
  }
  for (int i = 0; i < tree.rows; ++i)
    if (tree.first_child[i] != first[i] || tree.next_sibling[i] != next[i])
      return malformed(i, "its links do not match the parents");
  return {};
}

}  // namespace ddtree
