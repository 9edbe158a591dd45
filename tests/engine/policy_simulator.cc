#include "engine/policy_simulator.h"

#include <algorithm>
#include <cmath>
#include <memory>

namespace ddtree {
namespace {

constexpr int32_t kHeldRows = 15;  // before the engine must have them observed
constexpr int32_t kMaxStepRows = 1088;
constexpr int kOutlierEvery = 61;
constexpr int64_t kLearned = 16000;  // tokens that a wrong prior may take

// 0 … 1, a function of its arguments.
double dice(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t x = a * 0x9e3779b97f4a7c15u ^ b * 0xbf58476d1ce4e5b9u ^ c * 0x94d049bb133111ebu;
  for (int i = 0; i < 3; ++i) x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u, x ^= x >> 27;
  return static_cast<double>(x >> 11) / 9007199254740992.0;
}

double between(const std::vector<std::pair<double, double>>& points, double x) {
  size_t i = 1;
  while (i + 1 < points.size() && points[i].first < x) ++i;
  const auto [x0, y0] = points[i - 1];
  const auto [x1, y1] = points[i];
  return y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

// One stream: its place in its texts.
struct SimulatedStream {
  int index = 0, text = 0, position = 0;
  double surprise = 0;
  bool follows = true;
  int32_t pending = 0;
  std::unique_ptr<DraftMemory> memory = std::make_unique<DraftMemory>();
  Tree tree;
  Accepted accepted;
  bool drafts = false;

  int32_t max_depth() const { return std::min(RecordedBlocks::kSlots, RecordedBlocks::kPositions - position - 1); }
};

class Simulation {
 public:
  Simulation(const RecordedBlocks& blocks, const World& world, const SpecOptions& spec)
      : blocks_(blocks), world_(world), spec_(spec), policy_(world.prior) {}

  SimulatedRun run(const Workload& workload) {
    for (int s = 0; s < workload.streams; ++s) {
      SimulatedStream& stream = streams_.emplace_back();
      stream.index = s;
      stream.text = s % RecordedBlocks::kTexts;
      stream.position = s * 37 % RecordedBlocks::kPositions;  // they end at different times
      stream.surprise = workload.surprise[static_cast<size_t>(s) % workload.surprise.size()];
      begin(stream);
    }
    while (run_.tokens < world_.learned_after) step();
    run_ = {};
    while (run_.tokens < workload.tokens) step();
    run_.policy = policy_.totals();
    return run_;
  }

 private:
  bool is_auto() const { return spec_.mode == SpecMode::kAuto; }

  // A prompt's own pass is the same in every mode and left out; the drafter's share of it is not.
  void begin(SimulatedStream& stream) {
    stream.pending = 0;
    *stream.memory = {};
    const int32_t rows = blocks_.prompt_length[stream.text];
    stream.follows = spec_.mode != SpecMode::kOff;
    if (is_auto())
      stream.follows =
          policy_.follow(rows, RecordedBlocks::kPositions, static_cast<int32_t>(streams_.size()), *stream.memory);
    if (stream.follows) spend(0, 0, rows);
  }

  double spend(double target, double propose, int32_t observed) {
    const double draft = propose + world_.observed_ms * observed;
    run_.ms += target + draft;
    ++clock_;
    double noise = 1 + 0.08 * (dice(1, clock_, 0) - 0.5);
    if (clock_ % kOutlierEvery == 0) noise *= 6;
    measured_ = {target * noise, draft * noise, observed};
    if (target == 0 && is_auto()) policy_.learn({}, {}, {}, measured_);
    return target + draft;
  }

  void step() {
    std::vector<PolicyLane> lanes(streams_.size());
    const PolicyLoad load = {0, 0, kMaxStepRows};
    int32_t observed = 0, drafting = 0, rows = 0;
    int64_t keys = 0;
    for (size_t s = 0; s < lanes.size(); ++s) {
      SimulatedStream& stream = streams_[s];
      const int32_t context = blocks_.prompt_length[stream.text] + stream.position;
      lanes[s] = {is_auto() ? stream.memory.get() : nullptr, context, stream.follows ? stream.max_depth() : 0,
                  stream.pending};
      lanes[s].drafts = !is_auto() && lanes[s].max_depth > 0;
    }
    if (is_auto()) policy_.choose_drafts(lanes, load);
    for (size_t s = 0; s < lanes.size(); ++s) {
      SimulatedStream& stream = streams_[s];
      drafting += lanes[s].drafts;
      const bool full = stream.follows && stream.pending > kHeldRows;
      if (full && !lanes[s].drafts && is_auto()) stream.follows = policy_.follow_on(stream.pending, *stream.memory);
      if (lanes[s].drafts || (full && stream.follows)) observed += stream.pending, stream.pending = 0;
      if (!stream.follows) stream.pending = 0;
      grow(stream, lanes[s]);
      lanes[s].tree = &stream.tree;
    }
    if (is_auto()) {
      policy_.choose_nodes(lanes, load);
      for (size_t s = 0; s < lanes.size(); ++s) trim(streams_[s].tree, lanes[s].keep);
    }
    std::vector<LaneResult> results;
    for (size_t s = 0; s < lanes.size(); ++s) {
      accept(streams_[s]);
      results.push_back({&streams_[s].tree, &streams_[s].accepted});
      rows += streams_[s].tree.size();
      keys += int64_t{streams_[s].tree.size()} * lanes[s].context;
      run_.nodes += streams_[s].tree.nodes();
    }
    ++run_.steps;
    spend(world_.target(rows, keys), drafting > 0 ? world_.propose(drafting) : 0, observed);
    if (is_auto()) policy_.learn(lanes, results, load, measured_);
    advance();
  }

  void grow(SimulatedStream& stream, const PolicyLane& lane) {
    if (!lane.drafts) {
      stream.tree = root_tree(0);
      return;
    }
    const int k = spec_.mode == SpecMode::kChain ? 1 : std::min(RecordedBlocks::kRanks, spec_.budget);
    std::vector<float> log_prob;
    std::vector<int32_t> id;
    for (int slot = 0; slot < RecordedBlocks::kSlots; ++slot)
      for (int rank = 0; rank < k; ++rank) {
        log_prob.push_back(blocks_.log_prob(stream.text, stream.position, slot, rank));
        id.push_back(rank);
      }
    build_tree({RecordedBlocks::kSlots, k, log_prob.data(), id.data()}, 0, spec_.budget, {false, lane.max_depth},
               stream.tree);
  }

  // Follows the recorded text as far as the tree holds it.
  void accept(SimulatedStream& stream) const {
    stream.accepted = {};
    for (int row = 0;;) {
      const int slot = stream.accepted.length - 1;
      if (slot >= stream.max_depth()) break;
      const int truth = blocks_.rank(stream.text, stream.position, slot);
      const bool foreseen = dice(static_cast<uint64_t>(stream.index + 7), static_cast<uint64_t>(stream.text),
                                 static_cast<uint64_t>(stream.position + slot)) >= stream.surprise;
      int child = stream.tree.first_child[row];
      while (child >= 0 && !(foreseen && stream.tree.token[child] == truth)) child = stream.tree.next_sibling[child];
      if (child < 0) break;
      stream.accepted.path[stream.accepted.length++] = static_cast<int16_t>(row = child);
    }
  }

  void advance() {
    for (SimulatedStream& stream : streams_) {
      run_.tokens += stream.accepted.length;
      stream.position += stream.accepted.length;
      if (stream.follows) stream.pending += stream.accepted.length;
      if (stream.position + 1 < RecordedBlocks::kPositions) continue;
      stream.text = (stream.text + 1) % RecordedBlocks::kTexts;  // another takes its place
      stream.position = 0;
      begin(stream);
    }
  }

  const RecordedBlocks& blocks_;
  const World& world_;
  SpecOptions spec_;
  Policy policy_;
  std::vector<SimulatedStream> streams_;
  SimulatedRun run_;
  StepTimes measured_;
  uint64_t clock_ = 0;
};

// The next multiple of a kernel's tile.
int32_t tiled(int32_t rows, int32_t tile) { return (rows + tile - 1) / tile * tile; }

}  // namespace

SimulatedRun simulate(const RecordedBlocks& blocks, const World& world, const Workload& workload,
                      const SpecOptions& spec) {
  return Simulation(blocks, world, spec).run(workload);
}

std::vector<World> worlds() {
  std::vector<World> out;
  // docs/benchmarks.md: the demo pair on a 2-core EPYC; a row's time grows with its keys.
  const StepPrior cpu = {0.5, 1, 0, 0, 0, 1, 0, 0, 4, 0.2};
  out.push_back({"CPU, measured",
                 [](int32_t rows, int64_t keys) { return 0.10 + 0.10 * rows + 0.00045 * static_cast<double>(keys); },
                 [](int32_t streams) { return 0.65 * streams; }, 0.014, cpu});
  // The same with a drafter that costs a tenth.
  out.push_back({"CPU, small drafter",
                 [](int32_t rows, int64_t keys) { return 0.10 + 0.05 * rows + 0.0001 * static_cast<double>(keys); },
                 [](int32_t streams) { return 0.065 * streams; }, 0.002, cpu});
  // bench/results/h200: 60 layers of experts on one rank of eight, then on one card; what else a step does is assumed.
  const StepPrior h200 = {2.4, 0.01, 0.06, 384, 8, 1, 0, 0.6, 0.05, 0.005};
  const std::vector<std::pair<double, double>> rank = {
      {1, 16.9},   {2, 22.4},    {4, 35.0},    {9, 58.8},    {17, 96.8},   {33, 160.1},  {64, 235.7},
      {90, 272.8}, {128, 300.2}, {192, 319.4}, {256, 332.5}, {384, 365.3}, {512, 406.3}, {1088, 537.0}};
  out.push_back({"H200, a rank of 8",
                 [rank](int32_t rows, int64_t) { return 2.0 + 0.06 * between(rank, rows) + 0.005 * rows; },
                 [](int32_t streams) { return 0.65 + 0.02 * streams; }, 0.004, h200});
  const std::vector<std::pair<double, double>> card = {
      {1, 56.2},    {2, 102.7},    {4, 198.2},    {9, 414.9},    {17, 720.1},   {33, 1204.4},  {64, 1799.7},
      {90, 2080.3}, {128, 2304.2}, {192, 2389.2}, {256, 2472.4}, {384, 2680.6}, {512, 2953.1}, {1088, 3645.8}};
  out.push_back({"H200, one card",
                 [card](int32_t rows, int64_t) { return 4.0 + 0.06 * between(card, rows) + 0.02 * rows; },
                 [](int32_t streams) { return 2.0 + 0.1 * streams; }, 0.02, h200});
  // A staircase: nothing up to 8 rows, then a large step, then smaller ones.
  out.push_back({"cliffs",
                 [](int32_t rows, int64_t) { return 10 + (rows > 8 ? 7 : 0) + 0.15 * tiled(rows, 16); },
                 [](int32_t streams) { return 2.5 + 0.3 * streams; },
                 0.02,
                 {10, 0.3, 0, 0, 0, 1, 0, 2, 0.5, 0.02}});
  // Experts that are read once however many rows want them, on a slow link.
  out.push_back({"expert union",
                 [](int32_t rows, int64_t) { return 1.3 + 0.055 * expected_experts(384, 8, 0.6, rows); },
                 [](int32_t streams) { return 0.6 + 0.05 * streams; },
                 0.005,
                 {1.6, 0.001, 0.05, 384, 8, 0.7, 0, 0.6, 0.05, 0.005}});
  // Rows are free, as on a large card with a small dense model; and the policy is told that they are not.
  out.push_back({"flat, prior wrong", [](int32_t rows, int64_t) { return 8 + 0.002 * rows; },
                 [](int32_t streams) { return 0.8 + 0.01 * streams; }, 0.002, cpu, kLearned});
  // Linear in rows, and the policy is told that they are free.
  out.push_back({"linear, prior wrong", [](int32_t rows, int64_t) { return 0.2 + 3.0 * rows; },
                 [](int32_t streams) { return 5.0 * streams; }, 0.05, h200, kLearned});
  return out;
}

}  // namespace ddtree
