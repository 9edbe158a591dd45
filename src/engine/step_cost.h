// StepCostModel: how many milliseconds a step takes, as a function of its rows. It starts from an analytic prior and
// learns from measured steps. Pure: times come in as arguments.
//
// Costs have cliffs (a kernel's next tile, the next row bucket) and rise steeply and then hardly at all (experts are
// read once however many rows want them), so no shape is assumed: every number of rows has a cell of its own, wide ones
// only where they no longer matter. A cell holds the median of its last measurements, relative to the prior, so an
// outlier moves nothing; cells without any take that ratio from their neighbours.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace ddtree {

// Distinct experts that so many rows reach if each chooses uniformly and on its own. `overlap` 1 takes that as it is; a
// smaller one says how alike rows of one text choose: experts = top_k + overlap · (union − top_k).
double expected_experts(int32_t experts, int32_t top_k, double overlap, double rows);

// What a step is thought to cost before any was measured. Only proportions matter once the first is.
struct StepPrior {
  double fixed_ms = 1;       // of a target pass, however many rows
  double row_ms = 1;         // and of each row
  double expert_ms = 0;      // and of each distinct expert that the rows reach
  int32_t experts = 0;       // 0: none
  int32_t top_k = 0;         // of them, for each row
  double overlap = 1;        // see expected_experts()
  double key_ms = 0;         // of a row for each token before it
  double propose_ms = 1;     // of drafting, however many streams
  double stream_ms = 1;      // and of each stream that drafts
  double observed_ms = 0.1;  // of each row that the drafter takes in

  double target_ms(int32_t rows) const;
};

// Time as a function of a count from 1 on, and of the keys that are read on top.
class CountCost {
 public:
  using Prior = std::function<double(int32_t count)>;
  CountCost(const Prior& prior, double key_ms, int32_t most);

  double ms(int32_t count, int64_t keys = 0) const;
  bool measured() const { return measured_; }
  double scale() const { return ms_[1] / prior_[1]; }  // of the smallest count: measured ÷ prior
  void add(int32_t count, int64_t keys, double ms);    // one measurement

 private:
  static constexpr int kKept = 7;  // measurements a cell remembers: up to three outliers in them do nothing
  struct Sample {
    double ms = 0, keys = 0;
  };
  struct Cell {
    std::array<Sample, kKept> samples = {};
    int kept = 0, next = 0;
  };

  double median(const Cell& cell) const;  // without its keys
  double pace(int32_t from, int32_t to, double ms) const;
  void learn_slope(const Cell& cell, double keys, double ms);
  void refill();

  std::vector<double> prior_, ms_;  // [most + 1] by count, without keys
  std::vector<int32_t> cell_of_;    // [most + 1]
  std::vector<int32_t> center_;     // [cells] a count in the cell's middle
  std::vector<Cell> cells_;
  bool measured_ = false;
  double prior_key_ms_ = 0, key_ms_ = 0;
  double sum_kk_ = 0, sum_km_ = 0;  // within cells: keys against keys, keys against ms
};

class StepCostModel {
 public:
  static constexpr int32_t kMostRows = 1088;
  static constexpr int32_t kMostStreams = 256;

  explicit StepCostModel(const StepPrior& prior);

  // A pass of the target. `keys`: over all rows, the committed tokens that each sees.
  double target_ms(int32_t rows, int64_t keys) const { return target_.ms(rows, keys); }
  double propose_ms(int32_t streams) const { return streams > 0 ? scaled(propose_, streams) : 0; }
  double observe_ms(int32_t rows) const;

  bool measured() const { return target_.measured(); }
  bool drafted() const { return propose_.measured(); }
  double scale() const { return target_.scale(); }  // of one row: measured ÷ prior

  void add_target(int32_t rows, int64_t keys, double ms) { target_.add(rows, keys, ms); }
  // One measurement of both together: how drafting is timed.
  void add_draft(int32_t streams, int32_t observed, double ms);

 private:
  double scaled(const CountCost& cost, int32_t count) const;

  CountCost target_, propose_, observe_;
};

}  // namespace ddtree
