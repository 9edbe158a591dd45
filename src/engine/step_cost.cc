#include "engine/step_cost.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace ddtree {
namespace {

constexpr double kSmallest = 1e-6;      // ms: a ratio needs something to stand on
constexpr double kLeastShare = 0.05;    // of a measurement that its keys can never explain
constexpr double kSlopeForget = 0.999;  // by measurement
constexpr double kSlopeWeight = 32768;  // keys²: how much evidence the prior of the slope is worth
constexpr double kSlopeClip = 0.5;      // of the median: a larger deviation is an outlier
constexpr double kFirstClip = 3;        // a cell's first measurement counts as at most so many times what was expected
constexpr int32_t kObservedChunk = 512;
constexpr int kSlopeSamples = 3;  // in a cell, before its deviations mean something

// Every count up to 64 has a cell of its own.
int32_t cell_width(int32_t count) { return count <= 64 ? 1 : count <= 128 ? 4 : count <= 256 ? 8 : 32; }

}  // namespace

double expected_experts(int32_t experts, int32_t top_k, double overlap, double rows) {
  if (experts <= 0) return 0;
  const double share = std::min(1.0, static_cast<double>(top_k) / experts);
  const double all = experts * (1 - std::pow(1 - share, rows));
  return top_k + overlap * (all - top_k);
}

double StepPrior::target_ms(int32_t rows) const {
  return fixed_ms + row_ms * rows + expert_ms * expected_experts(experts, top_k, overlap, rows);
}

CountCost::CountCost(const Prior& prior, double key_ms, int32_t most) : prior_key_ms_(key_ms), key_ms_(key_ms) {
  prior_.resize(most + 1);
  cell_of_.resize(most + 1);
  for (int32_t count = 1; count <= most;) {
    const int32_t last = std::min(most, count + cell_width(count) - 1);
    center_.push_back((count + last) / 2);
    for (; count <= last; ++count) {
      prior_[count] = std::max(kSmallest, prior(count));
      cell_of_[count] = static_cast<int32_t>(center_.size()) - 1;
    }
  }
  cells_.resize(center_.size());
  ms_ = prior_;
}

double CountCost::ms(int32_t count, int64_t keys) const {
  CHECK_GT(count, 0);
  const int32_t at = std::min<int32_t>(count, static_cast<int32_t>(prior_.size()) - 1);
  return ms_[at] + key_ms_ * static_cast<double>(keys);
}

void CountCost::add(int32_t count, int64_t keys, double ms) {
  CHECK_GT(count, 0);
  if (!(ms > 0)) return;
  Cell& cell = cells_[cell_of_[std::min<int32_t>(count, static_cast<int32_t>(prior_.size()) - 1)]];
  learn_slope(cell, static_cast<double>(keys), ms);
  if (cell.kept == 0 && measured_) ms = std::min(ms, kFirstClip * this->ms(count, keys));
  measured_ = true;
  cell.samples[cell.next] = {ms, static_cast<double>(keys)};
  cell.next = (cell.next + 1) % kKept;
  cell.kept = std::min(cell.kept + 1, kKept);
  refill();
}

// Within one cell the rows are the same, so what remains is the keys: a regression on the deviations.
void CountCost::learn_slope(const Cell& cell, double keys, double ms) {
  if (cell.kept < kSlopeSamples) return;
  std::array<double, kKept> all;
  double mean_keys = 0;
  for (int i = 0; i < cell.kept; ++i) all[i] = cell.samples[i].ms, mean_keys += cell.samples[i].keys / cell.kept;
  std::nth_element(all.begin(), all.begin() + cell.kept / 2, all.begin() + cell.kept);
  const double median = all[cell.kept / 2], dk = keys - mean_keys;
  const double dm = std::clamp(ms - median, -kSlopeClip * median, kSlopeClip * median);
  sum_kk_ = kSlopeForget * sum_kk_ + dk * dk;
  sum_km_ = kSlopeForget * sum_km_ + dk * dm;
  key_ms_ = std::max(0.0, (sum_km_ + kSlopeWeight * prior_key_ms_) / (sum_kk_ + kSlopeWeight));
}

// The lower median: of two measurements the smaller, since what disturbs a step makes it longer.
double CountCost::median(const Cell& cell) const {
  std::array<double, kKept> ms;
  for (int i = 0; i < cell.kept; ++i)
    ms[i] = std::max(cell.samples[i].ms - key_ms_ * cell.samples[i].keys, kLeastShare * cell.samples[i].ms);
  const int middle = (cell.kept - 1) / 2;
  std::nth_element(ms.begin(), ms.begin() + middle, ms.begin() + cell.kept);
  return ms[middle];
}

// Between two measured counts the prior says how the difference is spread; beyond them how fast it goes on, at the pace
// that was measured against the prior's.
void CountCost::refill() {
  const auto line = [&](int32_t from, int32_t to, double start, double pace) {
    for (int32_t count = from; count <= to; ++count)
      ms_[count] = std::max(kSmallest, start + pace * (prior_[count] - prior_[from]));
  };
  const int32_t most = static_cast<int32_t>(ms_.size()) - 1;
  int32_t first = 0, before = 0;
  for (size_t c = 0; c < cells_.size(); ++c) {
    if (cells_[c].kept == 0) continue;
    const int32_t count = center_[c];
    const double here = median(cells_[c]);
    if (before == 0) {
      first = count;
      for (int32_t below = 1; below < count; ++below) ms_[below] = here * prior_[below] / prior_[count];
    } else {
      line(before, count, ms_[before], pace(before, count, here));
    }
    ms_[count] = here;
    before = count;
  }
  line(before, most, ms_[before], first == before ? ms_[before] / prior_[before] : pace(first, before, ms_[before]));
}

// Of measured time against the prior's from one count to another.
double CountCost::pace(int32_t from, int32_t to, double ms) const {
  const double expected = prior_[to] - prior_[from];
  return expected > 0 ? std::max(0.0, (ms - ms_[from]) / expected) : 0;
}

StepCostModel::StepCostModel(const StepPrior& prior)
    : target_([&](int32_t rows) { return prior.target_ms(rows); }, prior.key_ms, kMostRows),
      propose_([&](int32_t streams) { return prior.propose_ms + prior.stream_ms * streams; }, 0, kMostStreams),
      observe_([&](int32_t rows) { return prior.observed_ms * rows; }, 0, kMostRows) {}

// The prior knows proportions: until drafting was measured it goes by what the target turned out to take.
double StepCostModel::scaled(const CountCost& cost, int32_t count) const {
  return cost.ms(count) * (cost.measured() ? 1 : target_.scale());
}

// Longer texts are taken in by chunks.
double StepCostModel::observe_ms(int32_t rows) const {
  if (rows <= 0) return 0;
  const int32_t chunk = std::min(rows, kObservedChunk);
  return scaled(observe_, chunk) * rows / chunk;
}

void StepCostModel::add_draft(int32_t streams, int32_t observed, double ms) {
  if (streams == 0) {
    if (observed > 0) observe_.add(observed, 0, ms);
    return;
  }
  propose_.add(streams, 0, std::max(ms - observe_ms(observed), kLeastShare * ms));
}

}  // namespace ddtree
