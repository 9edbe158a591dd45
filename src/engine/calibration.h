// Calibration: how likely a drafted node is accepted, given that its parent was. A drafter's own probabilities are
// over- or under-confident, differently by depth and rank, and off the spine (behind a token that was not its first
// choice) much less reliable, since it proposed every slot on its own. So they are corrected by what was observed.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "spec/tree.h"
#include "spec/walk.h"

namespace ddtree {

// Accepted against expected, with decay: the ratio is 1 while nothing is known.
class AcceptRatio {
 public:
  double value() const { return (accepted_ + kShrink) / (expected_ + kShrink); }
  void add(double expected, bool accepted, double keep);

 private:
  static constexpr double kShrink = 4;  // expected acceptances that the prior, a ratio of 1, is worth
  double accepted_ = 0, expected_ = 0;
};

class Calibration {
 public:
  // Probability that each row of `tree` is accepted, the root's being 1; `own` corrects for the stream itself.
  void probabilities(const Tree& tree, const AcceptRatio& own, std::span<double> out) const;

  // What became of a verified tree: every child of an accepted row was a trial.
  void learn(const Tree& tree, const Accepted& accepted, AcceptRatio& own);

  // Of the children of that depth and rank whose parent is on the spine, or is not.
  double ratio(bool on_spine, int depth, int rank) const { return cells_[cell(on_spine, depth, rank)].value(); }

 private:
  static constexpr int kRankGroups = 7;  // ranks 0, 1, 2–3, 4–7, …

  static size_t cell(bool on_spine, int depth, int rank);

  std::array<AcceptRatio, 2 * (kMaxDepth + 1) * kRankGroups> cells_;
};

}  // namespace ddtree
