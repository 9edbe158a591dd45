#include "engine/calibration.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace ddtree {
namespace {

constexpr double kCellKeep = 1 - 1.0 / 512;  // by trial of a cell: what is older than some hundred fades
constexpr double kOwnKeep = 1 - 1.0 / 64;
constexpr double kLeastRatio = 0.05, kMostRatio = 4;

// The drafter's own probability of a row given its parent.
double conditional(const Tree& tree, int row) { return std::exp(tree.log_prob[row] - tree.log_prob[tree.parent[row]]); }

// Whether all of a row's drafted ancestors and itself were first choices.
std::array<bool, kMaxRows> spines(const Tree& tree) {
  std::array<bool, kMaxRows> spine;
  spine[0] = true;
  for (int row = 1; row < tree.size(); ++row) spine[row] = spine[tree.parent[row]] && tree.rank[row] == 0;
  return spine;
}

double corrected(double conditional, const AcceptRatio& cell, const AcceptRatio& own) {
  return std::min(1.0, conditional * std::clamp(cell.value() * own.value(), kLeastRatio, kMostRatio));
}

}  // namespace

void AcceptRatio::add(double expected, bool accepted, double keep) {
  expected_ = keep * expected_ + expected;
  accepted_ = keep * accepted_ + (accepted ? 1 : 0);
}

size_t Calibration::cell(bool on_spine, int depth, int rank) {
  const int group = std::min(kRankGroups - 1, static_cast<int>(std::bit_width(static_cast<unsigned>(rank))));
  return (static_cast<size_t>(on_spine) * (kMaxDepth + 1) + depth) * kRankGroups + group;
}

void Calibration::probabilities(const Tree& tree, const AcceptRatio& own, std::span<double> out) const {
  const std::array<bool, kMaxRows> spine = spines(tree);
  out[0] = 1;
  for (int row = 1; row < tree.size(); ++row) {
    const int parent = tree.parent[row];
    const AcceptRatio& seen = cells_[cell(spine[parent], tree.depth[row], tree.rank[row])];
    out[row] = out[parent] * corrected(conditional(tree, row), seen, own);
  }
}

void Calibration::learn(const Tree& tree, const Accepted& accepted, AcceptRatio& own) {
  const std::array<bool, kMaxRows> spine = spines(tree);
  for (int k = 0; k < accepted.length; ++k) {
    const int row = accepted.path[k];
    const int next = k + 1 < accepted.length ? accepted.path[k + 1] : -1;
    for (int child = tree.first_child[row]; child >= 0; child = tree.next_sibling[child]) {
      AcceptRatio& seen = cells_[cell(spine[row], tree.depth[child], tree.rank[child])];
      const double expected = conditional(tree, child);
      own.add(std::min(1.0, expected * seen.value()), child == next, kOwnKeep);
      seen.add(expected, child == next, kCellKeep);
    }
  }
}

}  // namespace ddtree
