// Policy of `auto`: whether to draft in this step and for whom, and then how many nodes for whom. Both by expected
// tokens per millisecond, from StepCostModel and Calibration, and neither can change a text. Pure: no clock, no device,
// no threads; equal calls give equal decisions.
//
// It cannot lose much: what probing has cost, together with what drafts that were believed in have cost more than they
// brought, is kept below kShare of all time (and kAdvance plain passes, which a start may spend at once).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/calibration.h"
#include "engine/step_cost.h"
#include "spec/tree.h"
#include "spec/walk.h"

namespace ddtree {

// What drafting is expected to bring, before there is a tree: the nodes of recent ones by their probability.
class Outlook {
 public:
  static constexpr int kBins = 40;  // bin b: probabilities from 2^(−b/4) down

  Outlook();  // of a drafter that nothing is known of
  // Moves towards the nodes of one tree; `share` 1 forgets all before.
  void learn(std::span<const double> probabilities, double share);
  void add(const Outlook& other, double most);  // at most so many accepted nodes of it
  void mix(const Outlook& other, double share);
  void clear();
  double nodes(int bin) const { return nodes_[bin]; }
  double accepted(int bin) const { return accepted_[bin]; }
  double total() const;

 private:
  std::array<double, kBins> nodes_ = {}, accepted_ = {};
};

enum class DraftReason : uint8_t {
  kNone,    // no decision yet
  kPays,    // expected to save more than it costs
  kLoses,   // to cost more than it saves
  kProbe,   // not expected to pay; drafted to see whether that is still so
  kSpent,   // expected to pay, but drafts lately did not
  kBehind,  // the drafter did not follow the text while drafting did not pay
};

// The last decision about a stream, in numbers: what drafting for all chosen streams would have cost and saved.
struct DraftDecision {
  DraftReason reason = DraftReason::kNone;
  double costs_ms = 0;  // beyond the plain pass
  double saves_ms = 0;  // plain passes' worth of the tokens expected on top
};

bool drafts(DraftReason reason);

// "auto: off, because drafting costs 0.31 ms and is expected to save 0.12 ms"
std::string explain(const DraftDecision& decision);

// What the policy remembers of one stream.
struct DraftMemory {
  Outlook lately, outlook;  // of its last drafts, and of its drafts in general
  Outlook expected;         // of a draft in the step under way
  AcceptRatio own;
  int64_t drafted_at = -1;  // the policy's step of the last draft; −1: none yet
  int32_t drafts = 0;
  int32_t deepest = 0;  // tree that could have been; shallower ones, near a text's end, are not typical
  DraftDecision decision;
};

// A decoding stream of one step.
struct PolicyLane {
  DraftMemory* memory = nullptr;  // null: its mode is fixed
  int32_t context = 0;            // committed tokens
  int32_t max_depth = 0;          // deepest useful node; 0: it cannot draft in this step
  int32_t pending = 0;            // committed rows that the drafter must take in first
  bool drafts = false;            // a fixed lane's: given; else choose_drafts() says
  const Tree* tree = nullptr;     // before choose_nodes()
  int32_t keep = 0;               // nodes: choose_nodes() says; before, what a fixed lane may get
  bool probes = false;            // drafts to see, not to gain
};

// What shares the step with the lanes.
struct PolicyLoad {
  int32_t chunk_rows = 0;  // prompt
  int64_t chunk_keys = 0;
  int32_t max_rows = 0;  // of the lanes' trees together, roots included
};

struct LaneResult {
  const Tree* tree = nullptr;
  const Accepted* accepted = nullptr;  // null: it failed
};

// How a step went.
struct StepTimes {
  double target_ms = 0, draft_ms = 0;
  int32_t observed = 0;  // rows the drafter took in
};

struct PolicyTotals {
  int64_t steps = 0, drafted = 0, probes = 0;
  double total_ms = 0;  // of all steps
  double probe_ms = 0;  // of what was done to see whether drafting pays
};

class Policy {
 public:
  static constexpr double kShare = 0.0075;  // of all time
  static constexpr int kAdvance = 2;        // plain passes

  explicit Policy(const StepPrior& prior);

  // Whether the drafter should take in a new text of so many rows, `running` streams with it: if drafting pays, or if
  // probing can pay for it.
  bool follow(int32_t rows, int32_t max_tokens, int32_t running, DraftMemory& memory);
  // Whether it should take in rows of a stream that does not draft now; if not, the stream is behind for good.
  bool follow_on(int32_t rows, DraftMemory& memory);

  void choose_drafts(std::span<PolicyLane> lanes, const PolicyLoad& load);
  // Fixed lanes keep their trees; `keep` may still exceed the rows there are (trim_to_rows).
  void choose_nodes(std::span<PolicyLane> lanes, const PolicyLoad& load);
  void learn(std::span<const PolicyLane> lanes, std::span<const LaneResult> results, const PolicyLoad& load,
             const StepTimes& times);

  const StepCostModel& cost() const { return cost_; }
  const Calibration& calibration() const { return calibration_; }
  const PolicyTotals& totals() const { return totals_; }

 private:
  // A step without any drafts of auto lanes.
  struct Base {
    double rows = 0, keys = 0;
    double tokens = 0;            // expected: one a stream
    int32_t drafting = 0;         // fixed lanes
    double draft_ms = 0, ms = 0;  // their drafting; all of the step
  };
  // Drafting for the first `streams` of an order, with as many nodes as pay best.
  struct Choice {
    int32_t streams = 0;
    double rate = 0;  // tokens a millisecond
    double costs_ms = 0, accepted = 0;
  };

  Base base_of(std::span<const PolicyLane> lanes, const PolicyLoad& load) const;
  Outlook outlook_of(const PolicyLane& lane) const;
  Choice best_nodes(const Base& base, const Outlook& outlook, int32_t streams, int32_t pending, double context) const;
  Choice best_streams(const Base& base, std::span<PolicyLane* const> order) const;
  void choose_probe(std::span<PolicyLane* const> order, const Choice& best);
  void take_trees(std::span<PolicyLane> lanes);
  void scan_sizes(std::span<PolicyLane> lanes, const PolicyLoad& load);
  void settle(std::span<const PolicyLane> lanes, std::span<const LaneResult> results, double ms);
  double target_ms(double rows, double keys) const;
  double plain_ms() const { return cost_.target_ms(1, 0); }
  double spent_ms() const;
  bool trusts(double ms) const;
  double credit_ms() const;

  StepCostModel cost_;
  Calibration calibration_;
  Outlook outlook_;  // of all streams
  int64_t drafts_ = 0;
  PolicyTotals totals_;
  double losses_ms_ = 0;  // of drafts that were believed in; below 0: gains that may still be lost
  int64_t paid_at_ = 0;   // the last step in which drafting paid
  int64_t next_probe_, probe_interval_;

  // The step under way.
  Base base_;
  double expected_ms_ = 0, probe_ms_ = 0;
  std::vector<PolicyLane*> order_;
  std::vector<double> probability_, pooled_;  // of the trees' rows, lane after lane; pooled: so that they descend
  std::vector<size_t> first_;                 // of each lane in these
  std::vector<std::pair<double, int32_t>> heads_;
  std::vector<int32_t> taken_;
};

}  // namespace ddtree
