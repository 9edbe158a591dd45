#include "engine/step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace ddtree {
namespace {

// FNV-1a over the bits that say which logits a row had.
uint64_t hash_row(std::span<const float> values, std::span<const int32_t> ids, float lse) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto mix = [&](uint32_t bits) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ ((bits >> shift) & 0xff)) * kHashPrime;
  };
  for (float v : values) mix(std::bit_cast<uint32_t>(v));
  for (int32_t id : ids) mix(static_cast<uint32_t>(id));
  mix(std::bit_cast<uint32_t>(lse));
  return hash;
}

void clear(Batch& batch) {
  batch.token.clear();
  batch.position.clear();
  batch.kv_row.clear();
  batch.ancestors.clear();
  batch.segments.clear();
  batch.head_row.clear();
}

void add_row(Batch& batch, int32_t token, int32_t position, int32_t kv_row, const AncestorWords& ancestors = {}) {
  batch.token.push_back(token);
  batch.position.push_back(position);
  batch.kv_row.push_back(kv_row);
  batch.ancestors.push_back(ancestors);
}

}  // namespace

Status Step::run(const Plan& plan, std::vector<Outcome>& outcomes) {
  be_.mark(Phase::kHost);
  be_.take_phase_ms();  // what passed since the last step is not this one's
  open(plan);
  TRY(draft());
  build_trees(plan.tree_rows);
  build_batch();
  be_.mark(Phase::kHost);
  TRY(verify());
  outcomes.clear();
  for (Lane& lane : lanes_) {
    Outcome& outcome = outcomes.emplace_back();
    outcome.stream = lane.item.stream;
    outcome.status = accept(lane, outcome);
  }
  be_.mark(Phase::kSample);
  commit(outcomes);
  TRY(be_.finish());
  account(outcomes);
  return {};
}

void Step::open(const Plan& plan) {
  lanes_.resize(plan.items.size());
  n_drafted_ = 0;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.item = plan.items[i];
    lane.first_head = -1;
  }
  choose_drafts(plan);
  for (Lane& lane : lanes_) lane.drafted = lane.policy >= 0 && policy_lanes_[lane.policy].drafts ? n_drafted_++ : -1;
}

// Streams of a fixed mode draft whenever they can; of mode auto, where it is expected to pay.
void Step::choose_drafts(const Plan& plan) {
  policy_lanes_.clear();
  load_ = {0, 0, plan.tree_rows};
  observed_ = 0;
  auto_ = false;
  for (Lane& lane : lanes_) {
    Stream& stream = *lane.item.stream;
    auto_ |= stream.is_auto();
    lane.policy = -1;
    if (lane.item.chunk > 0) {
      load_.chunk_rows += lane.item.chunk;
      load_.chunk_keys += int64_t{lane.item.chunk} * (stream.computed + lane.item.chunk / 2);
      continue;
    }
    lane.policy = static_cast<int32_t>(policy_lanes_.size());
    PolicyLane& to = policy_lanes_.emplace_back();
    to.memory = stream.is_auto() ? &stream.memory : nullptr;
    to.context = stream.computed;
    to.max_depth = lane.item.max_depth;
    to.pending = stream.can_draft() ? stream.computed - stream.observed : 0;
    to.drafts = !stream.is_auto() && lane.item.max_depth > 0;
    to.keep = to.drafts ? stream.request.spec.budget : 0;
  }
  if (auto_) policy_.choose_drafts(policy_lanes_, load_);
}

void Step::decide_follow(Stream& stream, int32_t running) {
  if (!stream.is_auto() || stream.prefill_end() > stream.draft_limit) return;
  stream.follows = policy_.follow(stream.prefill_end(), stream.remaining(), running, stream.memory);
}

// Graph A: what the drafter has not seen yet, then one block per stream, to candidates for every slot.
Status Step::draft() {
  ingest_taps();
  if (n_drafted_ > 0) propose();
  return be_.finish();
}

void Step::ingest_taps() {
  clear(observe_batch_);
  tap_rows_.clear();
  for (const Lane& lane : lanes_) {
    Stream& stream = *lane.item.stream;
    if (lane.item.chunk > 0 || !must_observe(lane)) continue;
    for (int32_t held = 0; stream.observed < stream.computed; ++held, ++stream.observed) {
      tap_rows_.push_back(stream.slot * kTapRoom + held);
      add_row(observe_batch_, 0, stream.observed, KvCache::page_row(stream.pages, stream.observed));
    }
  }
  if (tap_rows_.empty()) return;
  observed_ += static_cast<int32_t>(tap_rows_.size());
  const TensorView taps = observed_taps_.slice(0, static_cast<int64_t>(tap_rows_.size()));
  be_.gather_rows(taps, held_taps_, tap_rows_);
  drafter_->observe(taps, observe_batch_, cache_.draft());
}

// Before a draft, and when the ring of held taps has no room for another pass. A stream of mode auto that does not
// draft may lose its place instead: then the drafter does not follow it any more.
bool Step::must_observe(const Lane& lane) {
  Stream& stream = *lane.item.stream;
  if (lane.drafted >= 0) return true;
  const int32_t held = stream.computed - stream.observed;
  if (!stream.can_draft() || held <= kTapRoom - (kMaxDepth + 1)) return false;
  if (stream.is_auto()) stream.follows = policy_.follow_on(held, stream.memory);
  return stream.follows;
}

void Step::propose() {
  clear(draft_batch_);
  for (const Lane& lane : lanes_) {
    if (lane.drafted < 0) continue;
    const Stream& stream = *lane.item.stream;
    draft_batch_.segments.push_back(
        {stream.slot, draft_batch_.rows(), drafter_->block_size(), stream.computed, false, stream.pages});
    for (int32_t slot = 0; slot < drafter_->block_size(); ++slot)
      add_row(draft_batch_, slot == 0 ? stream.tokens.back() : drafter_->mask_token(), stream.computed + slot,
              cache_.block_row(stream.slot, slot));
  }
  const int64_t n = int64_t{n_drafted_} * drafter_->slots();
  drafter_->propose(draft_batch_, cache_.draft(),
                    {draft_value_.slice(0, n), draft_id_.slice(0, n), draft_lse_.slice(0, n), {}});
}

void Step::build_trees(int32_t max_rows) {
  std::vector<const Tree*> trees;
  std::vector<Lane*> owners;
  for (Lane& lane : lanes_) {
    if (lane.item.chunk > 0) continue;
    build_tree_of(lane);
    trees.push_back(&lane.tree);
    owners.push_back(&lane);
  }
  if (auto_) choose_nodes();
  const std::vector<int> keep = trim_to_rows(trees, max_rows);
  for (size_t i = 0; i < keep.size(); ++i) {
    owners[i]->item.stream->stats.trimmed += keep[i] < owners[i]->tree.nodes();
    trim(owners[i]->tree, keep[i]);
  }
  be_.mark(Phase::kTree);
}

void Step::choose_nodes() {
  for (const Lane& lane : lanes_)
    if (lane.policy >= 0) policy_lanes_[lane.policy].tree = &lane.tree;
  policy_.choose_nodes(policy_lanes_, load_);
  for (Lane& lane : lanes_)
    if (lane.policy >= 0) trim(lane.tree, policy_lanes_[lane.policy].keep);
}

void Step::build_tree_of(Lane& lane) {
  const Stream& stream = *lane.item.stream;
  const SpecOptions& spec = stream.request.spec;
  if (lane.drafted < 0) {
    lane.tree = root_tree(stream.tokens.back());
    return;
  }
  const int32_t slots = std::min(drafter_->slots(), kMaxDepth), first = lane.drafted * drafter_->slots();
  const int32_t table_k = static_cast<int32_t>(draft_id_.dim[1]);
  const int32_t k = spec.mode == SpecMode::kChain ? 1 : std::min(table_k, spec.budget);
  log_prob_.clear();
  ids_.clear();
  for (int32_t row = first; row < first + slots; ++row) {
    const float lse = draft_lse_.as<float>()[row];
    for (int32_t r = 0; r < k; ++r) {
      log_prob_.push_back(draft_value_.row<float>(row)[r] - lse);
      ids_.push_back(draft_id_.row<int32_t>(row)[r]);
    }
  }
  build_tree({slots, k, log_prob_.data(), ids_.data()}, stream.tokens.back(), spec.budget,
             {spec.chain_first, lane.item.max_depth}, lane.tree);
}

void Step::build_batch() {
  clear(batch_);
  for (Lane& lane : lanes_) {
    lane.first_row = batch_.rows();
    lane.item.chunk > 0 ? add_chunk(lane) : add_tree(lane);
    lane.rows = batch_.rows() - lane.first_row;
  }
  choose_head_rows();
}

void Step::add_chunk(Lane& lane) {
  const Stream& stream = *lane.item.stream;
  batch_.segments.push_back({stream.slot, lane.first_row, lane.item.chunk, stream.computed, false, stream.pages});
  for (int32_t p = stream.computed; p < stream.computed + lane.item.chunk; ++p)
    add_row(batch_, stream.tokens[p], p, KvCache::page_row(stream.pages, p));
}

void Step::add_tree(Lane& lane) {
  const Stream& stream = *lane.item.stream;
  const Tree& tree = lane.tree;
  batch_.segments.push_back({stream.slot, lane.first_row, tree.size(), stream.computed, true, stream.pages});
  std::array<AncestorWords, kMaxRows> ancestors;
  ancestor_words(tree, std::span(ancestors).first(tree.size()));
  for (int32_t node = 0; node < tree.size(); ++node)
    add_row(batch_, tree.token[node], stream.computed + tree.depth[node], cache_.tree_row(stream.slot, node),
            ancestors[node]);
}

// Rows that need only their best logits come first, then those whose sampling rules need all of them.
void Step::choose_head_rows() {
  for (const bool full : {false, true}) {
    if (full) top_only_ = static_cast<int32_t>(batch_.head_row.size());
    for (Lane& lane : lanes_) {
      if (lane.item.chunk > 0 && !lane.item.emits) continue;
      if (needs_full_logits(lane.item.stream->request.sampling) != full) continue;
      lane.first_head = static_cast<int32_t>(batch_.head_row.size());
      const int32_t first = lane.item.chunk > 0 ? lane.rows - 1 : 0;
      for (int32_t row = first; row < lane.rows; ++row) batch_.head_row.push_back(lane.first_row + row);
    }
  }
}

// Graph B: one pass of the target over every stream's rows.
Status Step::verify() {
  decoder_.forward(batch_, cache_.target());
  const int64_t n = static_cast<int64_t>(batch_.head_row.size()), full = n - top_only_;
  const std::span<const int32_t> rows = batch_.head_row;
  const auto part = [&](int64_t first, int64_t count, TensorView logits) {
    return HeadResult{head_value_.slice(first, count), head_id_.slice(first, count), head_lse_.slice(first, count),
                      logits};
  };
  decoder_.head(part(0, top_only_, {}), rows.first(top_only_));
  decoder_.head(part(top_only_, full, head_logits_.slice(0, full)), rows.subspan(top_only_));
  return be_.finish();
}

// Follows the tree as far as the target's own tokens do. Only the rows on that path are sampled.
Status Step::accept(Lane& lane, Outcome& outcome) {
  if (lane.first_head < 0) return {};
  if (lane.item.chunk > 0) {
    TRY_ASSIGN(OutputToken token, sample(lane, 0, {}));
    outcome.tokens.push_back(std::move(token));
    return {};
  }
  TRY_ASSIGN(lane.accepted, walk(links(lane.tree), [&](int node, std::span<const int32_t> path) -> Result<int32_t> {
               TRY_ASSIGN(OutputToken token, sample(lane, node, path));
               outcome.tokens.push_back(std::move(token));
               return outcome.tokens.back().id;
             }));
  return {};
}

// The target's token after row `node` of the lane, whose drafted ancestors and itself are `path`.
Result<OutputToken> Step::sample(const Lane& lane, int32_t node, std::span<const int32_t> path) {
  const Stream& stream = *lane.item.stream;
  const int32_t head = lane.first_head + node;
  const float* value = head_value_.row<float>(head);
  const int32_t* id = head_id_.row<int32_t>(head);
  const float lse = head_lse_.as<float>()[head];
  OutputToken token;
  token.id = id[0];
  token.margin = value[0] - value[1];
  token.row_hash = hash_row({value, kHeadTop}, {id, kHeadTop}, lse);
  if (head < top_only_) {
    if (!std::isfinite(lse))
      return Error{Code::kCorrupt, "the model's logits are not finite; the request cannot go on"};
    return token;
  }
  const int64_t vocab = head_logits_.dim[1];
  const float* row = head_logits_.row<float>(head - top_only_);
  logits_.assign(row, row + vocab);
  const SamplingParams& sampling = stream.request.sampling;
  const RowHistory history = {stream.request.prompt, std::span(stream.tokens).subspan(stream.prompt_length()), path};
  TRY_ASSIGN(token.id, sample_row(logits_, sampling, history, stream.request.choice, sampler_));
  if (sampling.logprobs >= 0) {
    TRY_ASSIGN(token.logprobs, token_logprobs({row, static_cast<size_t>(vocab)}, token.id, sampling.logprobs));
  }
  return token;
}

// Accepted rows move from the scratch to the pages, and their taps to where the drafter will find them.
void Step::commit(std::span<const Outcome> outcomes) {
  moves_.clear();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    Stream& stream = *lane.item.stream;
    if (!outcomes[i].status.ok()) continue;
    if (lane.item.chunk > 0) {
      observe_chunk(lane);
      stream.computed += lane.item.chunk;
      continue;
    }
    count_pass(lane, outcomes[i]);
    tap_rows_.clear();
    for (int32_t k = 0; k < lane.accepted.length; ++k) {
      const int32_t node = lane.accepted.path[k];
      moves_.emplace_back(cache_.tree_row(stream.slot, node), KvCache::page_row(stream.pages, stream.computed + k));
      tap_rows_.push_back(lane.first_row + node);
    }
    if (stream.can_draft()) {
      const int64_t held = stream.computed - stream.observed;
      be_.gather_rows(held_taps_.slice(stream.slot * kTapRoom + held, lane.accepted.length), decoder_.taps(),
                      tap_rows_);
    }
    stream.computed += lane.accepted.length;
  }
  be_.copy_rows(cache_.target(), moves_);
  be_.mark(Phase::kCommit);
}

void Step::observe_chunk(const Lane& lane) {
  Stream& stream = *lane.item.stream;
  if (!stream.observes()) return;
  clear(observe_batch_);
  for (int32_t p = stream.computed; p < stream.computed + lane.rows; ++p)
    add_row(observe_batch_, 0, p, KvCache::page_row(stream.pages, p));
  drafter_->observe(decoder_.taps().slice(lane.first_row, lane.rows), observe_batch_, cache_.draft());
  stream.observed += lane.rows;
  observed_ += lane.rows;
}

void Step::count_pass(const Lane& lane, const Outcome& outcome) const {
  Stream& stream = *lane.item.stream;
  RequestStats& stats = stream.stats;
  ++stats.steps;
  stats.committed += static_cast<int32_t>(outcome.tokens.size());
  stats.drafted += lane.tree.nodes();
  ++stats.accepted_histogram[lane.accepted.length];
  ++stats.passes_by_nodes[lane.tree.nodes()];
  stats.probes += policy_lanes_[lane.policy].probes;
  for (int32_t k = 1; k < lane.accepted.length; ++k) {
    ++stats.accepted_at_depth[k];
    ++stats.accepted_at_rank[lane.tree.rank[lane.accepted.path[k]]];
  }
  if (stream.request.trace) stream.trace.push_back(record(lane));
}

StepRecord Step::record(const Lane& lane) const {
  StepRecord out;
  out.position = lane.item.stream->computed;
  out.tree = lane.tree;
  out.path.assign(lane.accepted.path.begin(), lane.accepted.path.begin() + lane.accepted.length);
  out.next = lane.accepted.next;
  if (lane.drafted < 0) return out;
  CandidateTable& table = out.candidates;
  table.slots = drafter_->slots();
  table.k = static_cast<int32_t>(draft_id_.dim[1]);
  const int64_t first = int64_t{lane.drafted} * table.slots, n = int64_t{table.slots} * table.k;
  table.top_value.assign(draft_value_.row<float>(first), draft_value_.row<float>(first) + n);
  table.top_id.assign(draft_id_.row<int32_t>(first), draft_id_.row<int32_t>(first) + n);
  table.lse.assign(draft_lse_.as<float>() + first, draft_lse_.as<float>() + first + table.slots);
  return out;
}

// Times are shared out by rows: what a stream's requests report adds up to what the steps took.
void Step::account(std::span<const Outcome> outcomes) {
  const std::array<double, kPhases> ms = be_.take_phase_ms();
  for (size_t i = 0; i < outcomes.size(); ++i) {
    RequestStats& stats = lanes_[i].item.stream->stats;
    if (lanes_[i].item.chunk > 0) stats.prefill_tokens += lanes_[i].rows;
    for (int p = 0; p < kPhases; ++p) stats.phase_ms[p] += ms[p] * lanes_[i].rows / batch_.rows();
  }
  if (auto_) learn(outcomes, ms);
  for (int p = 0; p < kPhases; ++p) totals_.phase_ms[p] += ms[p];
  totals_.weight_bytes += be_.take_weight_bytes();
  totals_.rows += batch_.rows();
  ++totals_.steps;
}

void Step::learn(std::span<const Outcome> outcomes, const std::array<double, kPhases>& ms) {
  std::vector<LaneResult> results(policy_lanes_.size());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const Lane& lane = lanes_[i];
    if (lane.policy < 0) continue;
    results[lane.policy] = {&lane.tree, outcomes[i].status.ok() ? &lane.accepted : nullptr};
  }
  StepTimes times;
  times.draft_ms = ms[static_cast<size_t>(Phase::kDraft)];
  times.target_ms = std::accumulate(ms.begin(), ms.end(), 0.0) - times.draft_ms;
  times.observed = observed_;
  policy_.learn(policy_lanes_, results, load_, times);
}

Result<std::unique_ptr<Step>> Step::create(Backend& backend, Decoder& decoder, BlockDrafter* drafter, KvCache& cache,
                                           const SchedulerOptions& limits, const StepPrior& prior) {
  std::unique_ptr<Step> step(new Step(backend, decoder, drafter, cache, prior));
  TRY(step->allocate(limits));
  return step;
}

Status Step::allocate(const SchedulerOptions& limits) {
  const int64_t rows = limits.max_rows, vocab = decoder_.vocab_size();
  TRY_ASSIGN(head_value_, memory_.take("head results", DType::kF32, {rows, kHeadTop}));
  TRY_ASSIGN(head_id_, memory_.take("head results", DType::kI32, {rows, kHeadTop}));
  TRY_ASSIGN(head_lse_, memory_.take("head results", DType::kF32, {rows}));
  TRY_ASSIGN(head_logits_, memory_.take("logits", DType::kF32, {rows, vocab}));
  if (drafter_ == nullptr) return {};
  const int64_t slots = int64_t{limits.max_streams} * drafter_->slots(), k = std::min<int64_t>(kMaxRanks, vocab);
  TRY_ASSIGN(draft_value_, memory_.take("candidates", DType::kF32, {slots, k}));
  TRY_ASSIGN(draft_id_, memory_.take("candidates", DType::kI32, {slots, k}));
  TRY_ASSIGN(draft_lse_, memory_.take("candidates", DType::kF32, {slots}));
  const int64_t held = int64_t{limits.max_streams} * kTapRoom;
  const int64_t width = int64_t{decoder_.hidden_size()} * static_cast<int64_t>(drafter_->tap_layers().size());
  TRY_ASSIGN(held_taps_, memory_.activations({held, width}));
  TRY_ASSIGN(observed_taps_, memory_.activations({held, width}));
  return {};
}

}  // namespace ddtree
