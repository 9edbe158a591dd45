// Step: one decode step over all streams, on the backend. Reads top to bottom in step.cc: draft, build trees, verify,
// walk, commit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "engine/kv_cache.h"
#include "engine/scheduler.h"
#include "model/decoder.h"
#include "model/drafter.h"
#include "spec/sampling.h"
#include "spec/tree.h"
#include "spec/walk.h"

namespace ddtree {

// What a step did for one stream. Nothing is appended to the stream itself but its counts.
struct Outcome {
  Stream* stream = nullptr;
  std::vector<OutputToken> tokens;  // new ones, in order; empty while a prompt is being run
  Status status;                    // this stream's own failure, such as logits that are not finite
};

class Step {
 public:
  // `drafter` may be null. All must outlive the step; buffers for `max_rows` rows are taken once.
  static Result<std::unique_ptr<Step>> create(Backend& backend, Decoder& decoder, BlockDrafter* drafter, KvCache& cache,
                                              const SchedulerOptions& limits);

  // Runs `plan` and fills `outcomes`, one per item. An error is the device's: every stream is lost.
  Status run(const Plan& plan, std::vector<Outcome>& outcomes);

  static constexpr int32_t kHeadTop = 2;  // the best logit and the runner-up, for margins

 private:
  // A stream's part of the step.
  struct Lane {
    const PlanItem* item = nullptr;
    Tree tree;                // decode only
    int32_t candidates = -1;  // index among the drafted lanes, −1: not drafted
    int32_t first_row = 0;    // of its segment in the batch
    int32_t first_head = -1;  // of its rows among the head rows, −1: none
    int32_t first_full = -1;  // of its rows among the full-logit rows, −1: the head's top suffices
    Accepted accepted;
  };

  Step(Backend& backend, Decoder& decoder, BlockDrafter* drafter, KvCache& cache)
      : be_(backend), decoder_(decoder), drafter_(drafter), cache_(cache) {}
  Status allocate(const SchedulerOptions& limits);

  void draft();  // candidates of every lane that drafts
  void ingest_taps();
  void build_trees(int32_t max_rows);
  void build_batch();
  void add_chunk(Lane& lane);
  void add_tree(Lane& lane);
  void verify();  // the target's pass and its head
  Result<int32_t> sample(const Lane& lane, int32_t row, std::span<const int16_t> path, OutputToken& token);
  Status accept(Lane& lane, Outcome& outcome);
  void commit();
  void keep_statistics(const Lane& lane, const Outcome& outcome);
  void share_phase_times(std::span<const Outcome> outcomes);
  CandidateView candidates(const Lane& lane) const;
  StepRecord record(const Lane& lane) const;

  Backend& be_;
  Decoder& decoder_;
  BlockDrafter* drafter_;
  KvCache& cache_;

  std::vector<Lane> lanes_;  // reused; the first n_lanes_ count
  int32_t n_lanes_ = 0;
  Batch batch_, draft_batch_, observe_batch_;
  std::vector<int32_t> full_rows_, tap_rows_;
  std::vector<float> log_prob_;  // of the candidates
  SamplerScratch sampler_;

  std::vector<Buffer> buffers_;
  TensorView head_value_, head_id_, head_lse_,
      head_logits_;                                // target: [max_rows, kHeadTop], …, [full rows, vocabulary]
  TensorView draft_value_, draft_id_, draft_lse_;  // [streams · slots, kMaxRanks]
  TensorView tap_ring_;  // [streams · kTapRing, taps]: rows committed but not observed yet, at position mod kTapRing
  TensorView observed_taps_;  // [streams · kTapRing, taps], gathered for one observe()
};

}  // namespace ddtree
