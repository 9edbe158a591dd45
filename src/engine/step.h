// Step: one decode step over all streams, on the backend. Reads top to bottom in step.cc: draft, build trees, verify,
// walk, commit.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/memory.h"
#include "engine/kv_cache.h"
#include "engine/policy.h"
#include "engine/scheduler.h"
#include "model/decoder.h"
#include "model/drafter.h"
#include "spec/sampling.h"
#include "spec/tree.h"
#include "spec/walk.h"

namespace ddtree {

// What a step did for one stream.
struct Outcome {
  Stream* stream = nullptr;
  std::vector<OutputToken> tokens;  // new ones, in order; empty while a prompt is being run
  Status status;                    // this stream's own failure, such as logits that are not finite
};

struct StepTotals {
  std::array<double, kPhases> phase_ms = {};
  int64_t steps = 0, rows = 0, weight_bytes = 0;
};

class Step {
 public:
  static constexpr int32_t kTapRoom = 32;  // committed rows a stream may hold back from the drafter

  // `drafter` may be null. All must outlive the step; memory for the limits' rows is taken once.
  static Result<std::unique_ptr<Step>> create(Backend& backend, Decoder& decoder, BlockDrafter* drafter, KvCache& cache,
                                              const SchedulerOptions& limits, const StepPrior& prior);

  // Mode auto: whether the drafter takes in the text that `stream` starts with, `running` streams with it.
  void decide_follow(Stream& stream, int32_t running);

  // Runs `plan` and fills `outcomes`, one per item. Moves the streams' counts on; the tokens are the caller's to
  // append. An error is the device's: every stream is lost.
  Status run(const Plan& plan, std::vector<Outcome>& outcomes);

  const StepTotals& totals() const { return totals_; }
  const Policy& policy() const { return policy_; }

 private:
  static constexpr int32_t kHeadTop = 2;  // the best logit and the runner-up, for margins

  // One stream's part of the step.
  struct Lane {
    PlanItem item;
    int32_t drafted = -1;   // index among the lanes that draft, −1: this one does not
    int32_t policy = -1;    // index among the policy's lanes, −1: a prompt's
    Tree tree;              // decoding lanes
    int32_t first_row = 0;  // of its segment in the batch
    int32_t rows = 0;
    int32_t first_head = -1;  // of its rows among the head rows
    Accepted accepted;
  };

  Step(Backend& backend, Decoder& decoder, BlockDrafter* drafter, KvCache& cache, const StepPrior& prior)
      : be_(backend), decoder_(decoder), drafter_(drafter), cache_(cache), policy_(prior), memory_(backend) {}
  Status allocate(const SchedulerOptions& limits);

  void open(const Plan& plan);
  void choose_drafts(const Plan& plan);
  Status draft();
  void ingest_taps();
  void propose();
  bool must_observe(const Lane& lane);
  void build_trees(int32_t max_rows);
  void choose_nodes();
  void build_tree_of(Lane& lane);
  void build_batch();
  void add_chunk(Lane& lane);
  void add_tree(Lane& lane);
  void choose_head_rows();
  Status verify();
  Status accept(Lane& lane, Outcome& outcome);
  Result<OutputToken> sample(const Lane& lane, int32_t node, std::span<const int32_t> path);
  void commit(std::span<const Outcome> outcomes);
  void observe_chunk(const Lane& lane);
  void account(std::span<const Outcome> outcomes);
  void learn(std::span<const Outcome> outcomes, const std::array<double, kPhases>& ms);
  void count_pass(const Lane& lane, const Outcome& outcome) const;
  StepRecord record(const Lane& lane) const;

  Backend& be_;
  Decoder& decoder_;
  BlockDrafter* drafter_;
  KvCache& cache_;
  StepTotals totals_;

  Policy policy_;
  bool auto_ = false;  // a stream of mode auto takes part
  std::vector<PolicyLane> policy_lanes_;
  PolicyLoad load_;
  int32_t observed_ = 0;  // rows the drafter takes in
  std::vector<Lane> lanes_;
  int32_t n_drafted_ = 0;
  Batch batch_, draft_batch_, observe_batch_;
  int32_t top_only_ = 0;  // head rows before this index need no full logits
  std::vector<float> log_prob_, logits_;
  std::vector<int32_t> ids_, tap_rows_;
  std::vector<std::pair<int32_t, int32_t>> moves_;
  SamplerScratch sampler_;

  Memory memory_;
  TensorView head_value_, head_id_, head_lse_;     // [max_rows, kHeadTop], [max_rows, kHeadTop], [max_rows]
  TensorView head_logits_;                         // [max_rows, vocabulary]
  TensorView draft_value_, draft_id_, draft_lse_;  // [streams · slots, k], …, [streams · slots]
  TensorView held_taps_;      // [streams · kTapRoom, taps · hidden]: rows committed but not observed yet
  TensorView observed_taps_;  // the same size: gathered for one observe()
};

}  // namespace ddtree
