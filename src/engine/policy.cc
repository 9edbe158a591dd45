#include "engine/policy.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/check.h"

namespace ddtree {
namespace {

constexpr double kBinsPerHalf = 4;          // of an outlook
constexpr double kUnknownAcceptance = 0.8;  // of one more token, by a drafter that nothing is known of
constexpr int kUnknownDepth = 8;
constexpr double kForgetLately = 0.3;      // of what a stream's last drafts were like, by draft
constexpr double kForget = 1.0 / 32;       // of what they are like in general
constexpr double kForgetAll = 1.0 / 256;   // of all streams' together, by step
constexpr double kHalfLife = 16;           // steps in which half of "lately" is gone
constexpr double kMargin = 0.01;           // drafting must save more than it costs, times 1 + this
constexpr double kBank = 16;               // plain passes of gains that count against later losses
constexpr double kTrust = 3;               // plain passes that drafts believed in may lose at the start
constexpr int64_t kRecently = 64;          // steps
constexpr int64_t kFirstProbe = 4;         // steps, so that plain passes were measured
constexpr int64_t kShortestInterval = 16;  // steps between probes; doubles while they change nothing
constexpr int64_t kLongestInterval = 256;
constexpr int32_t kProbeNodes = 4;
constexpr int32_t kHorizon = 256;     // tokens that a new text is expected to get at most
constexpr double kOutlier = 2;        // times what was expected: longer steps were disturbed
constexpr double kNoUse = 1.0 / 512;  // probability of a node that no cost could justify

// Neighbours that ascend are averaged, so that the order in which a tree's nodes may be taken descends and sums stay.
void pool(std::span<const double> probability, std::span<double> pooled) {
  std::array<int, kMaxRows> width;
  int blocks = 0;
  for (size_t row = 1; row < probability.size(); ++row) {
    double mean = probability[row];
    int rows = 1;
    while (blocks > 0 && pooled[blocks] < mean) {
      mean = (mean * rows + pooled[blocks] * width[blocks]) / (rows + width[blocks]);
      rows += width[blocks--];
    }
    pooled[++blocks] = mean;
    width[blocks] = rows;
  }
  for (size_t row = probability.size(); row-- > 1;) {
    pooled[row] = pooled[blocks];
    if (--width[blocks] == 0) --blocks;
  }
}

}  // namespace

bool drafts(DraftReason reason) { return reason == DraftReason::kPays || reason == DraftReason::kProbe; }

std::string explain(const DraftDecision& decision) {
  char numbers[160];
  const auto with = [&](const char* format) {
    std::snprintf(numbers, sizeof(numbers), format, decision.costs_ms, decision.saves_ms);
    return std::string(numbers);
  };
  switch (decision.reason) {
    case DraftReason::kNone: return "auto: off, because no pass has run yet";
    case DraftReason::kPays: return with("auto: on, because drafting costs %.2f ms and is expected to save %.2f ms");
    case DraftReason::kLoses: return with("auto: off, because drafting costs %.2f ms and is expected to save %.2f ms");
    case DraftReason::kProbe:
      return with("auto: probing, since drafting costs %.2f ms and was expected to save %.2f ms");
    case DraftReason::kSpent:
      return with("auto: off, because drafts lately cost more than they saved (now %.2f ms for %.2f ms)");
    case DraftReason::kBehind:
      return with("auto: off for this text, because drafting costs %.2f ms and is expected to save %.2f ms");
  }
  return {};
}

Outlook::Outlook() {
  double probability = 1;
  std::array<double, kUnknownDepth + 1> chain;
  for (double& p : chain) p = probability, probability *= kUnknownAcceptance;
  learn(chain, 1);
}

void Outlook::mix(const Outlook& other, double share) {
  for (int bin = 0; bin < kBins; ++bin) {
    nodes_[bin] += share * (other.nodes_[bin] - nodes_[bin]);
    accepted_[bin] += share * (other.accepted_[bin] - accepted_[bin]);
  }
}

void Outlook::clear() { nodes_ = accepted_ = {}; }

// The first element is the root's.
void Outlook::learn(std::span<const double> probabilities, double share) {
  for (int bin = 0; bin < kBins; ++bin) nodes_[bin] *= 1 - share, accepted_[bin] *= 1 - share;
  for (const double p : probabilities.subspan(1)) {
    const int bin = p > 0 ? static_cast<int>(-kBinsPerHalf * std::log2(p)) : kBins;
    if (bin >= kBins) continue;
    nodes_[bin] += share;
    accepted_[bin] += share * p;
  }
}

void Outlook::add(const Outlook& other, double most) {
  for (int bin = 0; bin < kBins && most > 0; ++bin) {
    const double part = other.accepted_[bin] > most ? most / other.accepted_[bin] : 1;
    nodes_[bin] += part * other.nodes_[bin];
    accepted_[bin] += part * other.accepted_[bin];
    most -= other.accepted_[bin];
  }
}

double Outlook::total() const { return std::accumulate(accepted_.begin(), accepted_.end(), 0.0); }

Policy::Policy(const StepPrior& prior) : cost_(prior), next_probe_(kFirstProbe), probe_interval_(kShortestInterval) {}

double Policy::spent_ms() const { return totals_.probe_ms + std::max(0.0, losses_ms_); }

double Policy::credit_ms() const { return std::max(kShare * totals_.total_ms, kAdvance * plain_ms()); }

// Whether drafts that are believed in may still lose so much.
bool Policy::trusts(double ms) const {
  return totals_.probe_ms + std::max(0.0, losses_ms_ + ms) <= credit_ms() + kTrust * plain_ms();
}

double Policy::target_ms(double rows, double keys) const {
  const double below = std::floor(rows), part = rows - below;
  const double ms = cost_.target_ms(static_cast<int32_t>(below), static_cast<int64_t>(keys));
  return part == 0 ? ms
                   : ms + part * (cost_.target_ms(static_cast<int32_t>(below) + 1, static_cast<int64_t>(keys)) - ms);
}

// What was seen lately says less and less about where the text is now.
Outlook Policy::outlook_of(const PolicyLane& lane) const {
  if (lane.memory->drafts == 0) return outlook_;
  Outlook mixed = lane.memory->lately;
  const double gap = static_cast<double>(totals_.steps - lane.memory->drafted_at - 1);
  mixed.mix(lane.memory->outlook, 1 - std::exp2(-gap / kHalfLife));
  return mixed;
}

Policy::Base Policy::base_of(std::span<const PolicyLane> lanes, const PolicyLoad& load) const {
  Base base;
  base.rows = load.chunk_rows;
  base.keys = static_cast<double>(load.chunk_keys);
  int32_t pending = 0;
  for (const PolicyLane& lane : lanes) {
    const bool fixed = lane.memory == nullptr;
    const int32_t rows = !fixed ? 1 : lane.tree != nullptr ? lane.tree->size() : 1 + lane.keep;
    base.rows += rows;
    base.keys += static_cast<double>(rows) * lane.context;
    base.tokens += 1;
    base.drafting += fixed && lane.drafts;
    if (fixed && lane.drafts) pending += lane.pending;
  }
  base.draft_ms = cost_.propose_ms(base.drafting) + cost_.observe_ms(pending);
  base.ms = base.draft_ms + (base.rows > 0 ? target_ms(base.rows, base.keys) : 0);
  return base;
}

// Every size is looked at: costs have cliffs.
Policy::Choice Policy::best_nodes(const Base& base, const Outlook& outlook, int32_t streams, int32_t pending,
                                  double context) const {
  const double drafting = cost_.propose_ms(base.drafting + streams) - cost_.propose_ms(base.drafting) +
                          cost_.observe_ms(pending) + base.draft_ms;
  Choice best;
  double nodes = 0, accepted = 0;
  for (int bin = 0; bin < Outlook::kBins; ++bin) {
    if (outlook.nodes(bin) == 0) continue;
    nodes += outlook.nodes(bin);
    accepted += outlook.accepted(bin);
    const double ms = drafting + target_ms(base.rows + nodes, base.keys + nodes * context);
    const double rate = (base.tokens + accepted) / ms;
    if (rate > best.rate) best = {streams, rate, ms - base.ms, accepted};
  }
  return best;
}

Policy::Choice Policy::best_streams(const Base& base, std::span<PolicyLane* const> order) const {
  Choice best;
  Outlook sum;
  sum.clear();
  int32_t pending = 0;
  double contexts = 0;
  for (size_t n = 0; n < order.size(); ++n) {
    sum.add(order[n]->memory->expected, order[n]->max_depth);
    pending += order[n]->pending;
    contexts += order[n]->context;
    const int32_t streams = static_cast<int32_t>(n) + 1;
    const Choice choice = best_nodes(base, sum, streams, pending, contexts / streams);
    if (choice.rate > best.rate) best = choice;
  }
  return best;
}

void Policy::choose_drafts(std::span<PolicyLane> lanes, const PolicyLoad& load) {
  base_ = base_of(lanes, load);
  probe_ms_ = 0;
  order_.clear();
  for (PolicyLane& lane : lanes)
    if (lane.memory != nullptr && lane.max_depth > 0) {
      lane.memory->expected = outlook_of(lane);
      order_.push_back(&lane);
    }
  if (order_.empty()) return;
  std::stable_sort(order_.begin(), order_.end(), [](const PolicyLane* a, const PolicyLane* b) {
    return a->memory->expected.total() > b->memory->expected.total();
  });
  Choice best = best_streams(base_, order_);
  DraftDecision decision;
  decision.costs_ms = best.costs_ms;
  decision.saves_ms = best.accepted * base_.ms / base_.tokens;
  const bool pays = decision.saves_ms > (1 + kMargin) * decision.costs_ms;
  const bool trusted = trusts(0);
  decision.reason = !pays ? DraftReason::kLoses : trusted ? DraftReason::kPays : DraftReason::kSpent;
  const bool drafts = pays && trusted;
  if (drafts && paid_at_ < totals_.steps - 1) probe_interval_ = kShortestInterval;
  if (drafts) paid_at_ = totals_.steps;
  if (!drafts) best.streams = 0;
  if (!cost_.drafted()) best.streams = std::min(best.streams, 1);  // what was never timed is first tried on one
  for (size_t i = 0; i < order_.size(); ++i) {
    PolicyLane& lane = *order_[i];
    lane.drafts = static_cast<int32_t>(i) < best.streams;
    if (lane.max_depth < lane.memory->deepest) continue;  // a text's last tokens say little about it
    lane.memory->decision = decision;
    if (!drafts || lane.drafts) continue;
    const Choice alone = best_streams(base_, std::span(order_).subspan(i, 1));
    lane.memory->decision = {DraftReason::kLoses, alone.costs_ms, alone.accepted * base_.ms / base_.tokens};
  }
  choose_probe(order_, best);
}

// Of the streams that do not draft, the one whose last draft is longest ago: if it is time and there is time.
void Policy::choose_probe(std::span<PolicyLane* const> order, const Choice& best) {
  const std::span<PolicyLane* const> others = order.subspan(best.streams);
  if (others.empty() || totals_.steps < next_probe_) return;
  PolicyLane& lane = **std::min_element(others.begin(), others.end(), [](const PolicyLane* a, const PolicyLane* b) {
    return a->memory->drafted_at < b->memory->drafted_at;
  });
  const int32_t streams = base_.drafting + best.streams;
  probe_ms_ = cost_.propose_ms(streams + 1) - cost_.propose_ms(streams) + cost_.observe_ms(lane.pending) +
              target_ms(base_.rows + kProbeNodes, base_.keys + double{kProbeNodes} * lane.context) -
              target_ms(base_.rows, base_.keys);
  if (spent_ms() + probe_ms_ > credit_ms()) {
    probe_ms_ = 0;
    return;
  }
  lane.drafts = lane.probes = true;
  lane.memory->decision.reason = DraftReason::kProbe;
  next_probe_ = totals_.steps + probe_interval_;
  probe_interval_ = std::min(2 * probe_interval_, kLongestInterval);
  ++totals_.probes;
}

// Every drafted tree's probabilities, and what they say about trees to come.
void Policy::take_trees(std::span<PolicyLane> lanes) {
  probability_.clear();
  first_.clear();
  const auto drafting =
      std::count_if(lanes.begin(), lanes.end(), [](const PolicyLane& l) { return l.memory && l.drafts; });
  for (PolicyLane& lane : lanes) {
    first_.push_back(probability_.size());
    if (lane.memory == nullptr || !lane.drafts) continue;
    const size_t size = static_cast<size_t>(lane.tree->size());
    probability_.resize(first_.back() + size);
    const std::span<double> rows(probability_.data() + first_.back(), size);
    calibration_.probabilities(*lane.tree, lane.memory->own, rows);
    DraftMemory& memory = *lane.memory;
    if (lane.max_depth < memory.deepest) continue;
    memory.deepest = lane.max_depth;
    if (memory.drafts == 0) memory.outlook = outlook_;
    memory.lately = outlook_of(lane);
    memory.lately.learn(rows, kForgetLately);
    memory.outlook.learn(rows, std::max(kForget, 1.0 / (4 + memory.drafts)));
    outlook_.learn(rows,
                   std::max(kForgetAll / static_cast<double>(drafting), 1.0 / (4 + static_cast<double>(drafts_++))));
    ++memory.drafts;
    memory.drafted_at = totals_.steps;
  }
}

void Policy::choose_nodes(std::span<PolicyLane> lanes, const PolicyLoad& load) {
  base_ = base_of(lanes, load);
  for (PolicyLane& lane : lanes) lane.keep = lane.memory == nullptr ? lane.tree->nodes() : 0;
  expected_ms_ = base_.ms;
  if (std::none_of(lanes.begin(), lanes.end(), [](const PolicyLane& l) { return l.memory != nullptr && l.drafts; }))
    return;
  take_trees(lanes);
  scan_sizes(lanes, load);
}

// The nodes of all trees, most probable first; of every number of them the one with most tokens a millisecond.
void Policy::scan_sizes(std::span<PolicyLane> lanes, const PolicyLoad& load) {
  pooled_.resize(probability_.size());
  heads_.clear();
  taken_.clear();
  int32_t streams = base_.drafting, pending = 0;
  double rows = base_.rows, keys = base_.keys, tokens = base_.tokens;
  for (size_t l = 0; l < lanes.size(); ++l) {
    PolicyLane& lane = lanes[l];
    if (lane.memory == nullptr || !lane.drafts) continue;
    ++streams;
    pending += lane.pending;
    const size_t size = static_cast<size_t>(lane.tree->size());
    pool({probability_.data() + first_[l], size}, {pooled_.data() + first_[l], size});
    if (size > 1) heads_.emplace_back(pooled_[first_[l] + 1], -static_cast<int32_t>(l));
  }
  const double drafting =
      cost_.propose_ms(streams) + cost_.observe_ms(pending) + base_.draft_ms - cost_.propose_ms(base_.drafting);
  const auto take = [&](size_t l) {
    PolicyLane& lane = lanes[l];
    tokens += probability_[first_[l] + static_cast<size_t>(++lane.keep)];
    rows += 1;
    keys += lane.context;
    taken_.push_back(static_cast<int32_t>(l));
  };
  const double most = load.chunk_rows + load.max_rows;
  for (auto& [p, l] : heads_) {  // a probe verifies something
    if (!lanes[-l].probes || rows >= most) continue;
    take(-l);
    p = lanes[-l].keep < lanes[-l].tree->nodes() ? pooled_[first_[-l] + 2] : 0;
  }
  std::make_heap(heads_.begin(), heads_.end());
  double best_rate = 0;
  size_t best = 0;
  for (;;) {
    const double ms = drafting + target_ms(rows, keys);
    if (tokens / ms > best_rate) best_rate = tokens / ms, best = taken_.size(), expected_ms_ = ms;
    if (heads_.empty() || heads_.front().first < kNoUse || rows >= most) break;
    std::pop_heap(heads_.begin(), heads_.end());
    const int32_t l = -heads_.back().second;
    take(l);
    const PolicyLane& lane = lanes[l];
    if (lane.keep < lane.tree->nodes()) {
      heads_.back().first = pooled_[first_[l] + static_cast<size_t>(lane.keep) + 1];
      std::push_heap(heads_.begin(), heads_.end());
    } else {
      heads_.pop_back();
    }
  }
  for (; taken_.size() > best; taken_.pop_back()) --lanes[taken_.back()].keep;
}

void Policy::learn(std::span<const PolicyLane> lanes, std::span<const LaneResult> results, const PolicyLoad& load,
                   const StepTimes& times) {
  CHECK_EQ(lanes.size(), results.size());
  int32_t rows = load.chunk_rows, drafting = 0;
  int64_t keys = load.chunk_keys;
  bool drafts = false;
  AcceptRatio nobodys;
  for (size_t l = 0; l < lanes.size(); ++l) {
    rows += results[l].tree->size();
    keys += int64_t{results[l].tree->size()} * lanes[l].context;
    drafting += lanes[l].drafts;
    drafts |= lanes[l].drafts && lanes[l].memory != nullptr;
    if (results[l].accepted != nullptr)
      calibration_.learn(*results[l].tree, *results[l].accepted, lanes[l].memory ? lanes[l].memory->own : nobodys);
  }
  ++totals_.steps;
  totals_.drafted += drafts;
  totals_.total_ms += times.target_ms + times.draft_ms;
  // A pass with prompt rows is timed as a whole, and tells nothing about trees.
  const double ms = load.chunk_rows > 0 ? expected_ms_ : times.target_ms + times.draft_ms;
  if (drafts) settle(lanes, results, std::min(ms, kOutlier * expected_ms_));
  if (load.chunk_rows == 0 && rows > 0) {
    const bool first = !cost_.measured();
    cost_.add_target(rows, keys, times.target_ms);
    if (first) totals_.probe_ms *= cost_.scale();
  }
  cost_.add_draft(drafting, times.observed, times.draft_ms);
}

// What this step's drafts have cost beyond plain passes for the same tokens.
void Policy::settle(std::span<const PolicyLane> lanes, std::span<const LaneResult> results, double ms) {
  double tokens = 0;
  bool believed = false;
  for (size_t l = 0; l < lanes.size(); ++l) {
    if (results[l].accepted != nullptr) tokens += results[l].accepted->length;
    believed |= lanes[l].memory != nullptr && lanes[l].drafts && !lanes[l].probes;
  }
  if (!believed) {
    totals_.probe_ms += std::max(0.0, ms - base_.ms);
    return;
  }
  totals_.probe_ms += probe_ms_;
  losses_ms_ += ms - probe_ms_ - base_.ms * tokens / base_.tokens;
  losses_ms_ = std::max(losses_ms_, -kBank * plain_ms());
}

bool Policy::follow(int32_t rows, int32_t max_tokens, int32_t running, DraftMemory& memory) {
  const double ms = cost_.observe_ms(rows);
  const int32_t streams = std::max(1, running);
  Base base;
  base.rows = base.tokens = streams;
  base.ms = target_ms(streams, 0);
  Outlook sum;
  sum.clear();
  for (int32_t s = 0; s < streams; ++s) sum.add(outlook_, kMaxDepth);
  const Choice choice = best_nodes(base, sum, streams, 0, 0);
  const double gain = base.ms / base.tokens - (choice.rate > 0 ? 1 / choice.rate : HUGE_VAL);
  if (gain * std::min(max_tokens, kHorizon) >= ms) {
    if (totals_.steps - paid_at_ <= kRecently) return true;
    if (trusts(ms)) {  // this has been thought before
      losses_ms_ += ms;
      return true;
    }
  }
  memory.decision.costs_ms = choice.costs_ms;
  memory.decision.saves_ms = choice.accepted * base.ms / base.tokens;
  return follow_on(rows, memory);
}

bool Policy::follow_on(int32_t rows, DraftMemory& memory) {
  const double ms = cost_.observe_ms(rows);
  if (losses_ms_ + ms <= 0) {  // drafting has gained more than that, and may again
    losses_ms_ += ms;
    return true;
  }
  if (spent_ms() + ms > credit_ms()) {
    memory.decision.reason = DraftReason::kBehind;
    return false;
  }
  totals_.probe_ms += ms;
  return true;
}

}  // namespace ddtree
