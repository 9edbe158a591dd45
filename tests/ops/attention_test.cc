// attend() on every backend: against its definition and the oracle, and a row's bits across batches, layouts, threads,
// chunkings, and trees against committed text.
#include <gtest/gtest.h>

#include "attention_run.h"
#include "guarded.h"
#include "machines.h"

namespace ddtree::ops {
namespace {

using Mask = AttendSpec::Mask;

struct AttentionCase {
  std::string name;
  Question question;
  std::function<std::vector<AttentionSegment>()> segments;
};
void PrintTo(const AttentionCase& c, std::ostream* out) { *out << c.name; }

// Streams of all kinds in one batch; contexts around page borders.
std::vector<AttentionSegment> mixed() {
  return {chunk(1, 0, 33),       random_tree(2, 1, 16),   random_tree(3, 63, 1),   random_tree(4, 64, 33),
          chunk(5, 65, 17),      random_tree(6, 127, 31), random_tree(7, 200, 65), chunk(8, 200, 2),
          random_tree(9, 0, 15), chunk(10, 0, 1)};
}
std::vector<AttentionSegment> wide_tree() { return {random_tree(11, 200, 256)}; }
std::vector<AttentionSegment> long_chunks() { return {chunk(12, 0, 257), chunk(13, 127, 64)}; }
// Few rows over many keys: a backend may split the keys among its threads.
std::vector<AttentionSegment> long_contexts() { return {chunk(14, 3000, 1), random_tree(15, 1111, 9)}; }
std::vector<AttentionSegment> blocks() {
  return {chunk(20, 0, 16),  chunk(21, 1, 16),   chunk(22, 63, 1),  chunk(23, 64, 2),
          chunk(24, 65, 15), chunk(25, 127, 17), chunk(26, 200, 33)};
}

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases;
  for (const AttentionKind& kind : {kDemoLatent, kOddLatent, kTinyLatent, kDemoGrouped, kOddGrouped, kTinyGrouped}) {
    cases.push_back({kind.name + "_mixed", {kind}, mixed});
    cases.push_back({kind.name + "_blocks", {kind, Mask::kBlock}, blocks});
  }
  for (const AttentionKind& kind : {kDemoLatent, kDemoGrouped})
    cases.push_back({kind.name + "_wide_tree", {kind}, wide_tree});
  for (const AttentionKind& kind : {kOddLatent, kDemoGrouped})
    cases.push_back({kind.name + "_long_chunks", {kind}, long_chunks});
  for (const AttentionKind& kind : {kOddLatent, kOddGrouped}) {
    cases.push_back({kind.name + "_long_contexts", {kind}, long_contexts});
    cases.push_back({kind.name + "_long_contexts_window_999", {kind, Mask::kTree, 999}, long_contexts});
  }
  for (int32_t window : {1, 2, 5, 64, 100}) {
    const std::string name = "_window_" + std::to_string(window);
    cases.push_back({kDemoGrouped.name + name, {kDemoGrouped, Mask::kTree, window}, mixed});
    cases.push_back({kOddLatent.name + name, {kOddLatent, Mask::kTree, window}, mixed});
    cases.push_back({kDemoGrouped.name + "_blocks" + name, {kDemoGrouped, Mask::kBlock, window}, blocks});
  }
  return cases;
}

class Attention : public testing::TestWithParam<AttentionCase> {};

void expect_close(const float* got, const BoundedVector& want, double share, const std::string& what) {
  for (size_t i = 0; i < want.size(); ++i) {
    const double allowed = share * want[i].error + 1.001 * kUnit * std::fabs(want[i].value);
    ASSERT_LE(std::fabs(got[i] - want[i].value), allowed) << what << ", output " << i;
  }
}

TEST_P(Attention, AgreesWithDefinitionAndOracle) {
  const Question& question = GetParam().question;
  const std::vector<AttentionSegment> segments = GetParam().segments();
  BoundedVector bounds;
  for (const AttentionSegment& s : segments) {
    for (int32_t row = 0; row < static_cast<int32_t>(s.rows.size()); ++row) {
      const BoundedVector more = expected_attention(question, s, row);
      bounds.insert(bounds.end(), more.begin(), more.end());
    }
  }
  const std::vector<float> oracle = run_attention(*make_ref(), question, segments, 1);
  ASSERT_EQ(oracle.size(), bounds.size());
  ASSERT_NO_FATAL_FAILURE(expect_close(oracle.data(), bounds, 0.125, "ref"));
  for (size_t i = 0; i < bounds.size(); ++i) bounds[i].value = oracle[i];
  for (const Machine& machine : judged_machines()) {
    const std::vector<float> got = run_attention(*make(machine), question, segments, 2);
    ASSERT_NO_FATAL_FAILURE(expect_close(got.data(), bounds, 1, machine.name));
  }
}

// Compares runs with a first one, segment by segment.
class BitsOfSegments {
 public:
  BitsOfSegments(const Question& question, std::vector<AttentionSegment> segments, std::vector<float> baseline)
      : question_(question), segments_(std::move(segments)), baseline_(std::move(baseline)) {
    int64_t at = 0;
    for (const AttentionSegment& s : segments_) {
      first_.push_back(at);
      at += outputs(s);
    }
  }

  // `order` lists segments; kStranger stands for one of NaN.
  static constexpr size_t kStranger = ~size_t{0};
  void expect_same(Backend& backend, const std::vector<size_t>& order, uint64_t layout, const std::string& what) const {
    std::vector<AttentionSegment> batch;
    for (size_t i : order) batch.push_back(i == kStranger ? stranger() : segments_[i]);
    const std::vector<float> got = run_attention(backend, question_, batch, layout);
    int64_t at = 0;
    for (size_t i = 0; i < order.size(); at += outputs(batch[i]), ++i) {
      if (order[i] == kStranger) continue;
      ASSERT_TRUE(same_bits(got.data() + at, baseline_.data() + first_[order[i]], outputs(batch[i])))
          << what << ": segment " << order[i] << " in a batch of " << order.size();
    }
  }

 private:
  int64_t outputs(const AttentionSegment& s) const {
    return static_cast<int64_t>(s.rows.size()) * question_.kind.heads * question_.kind.v_dim;
  }
  static AttentionSegment stranger() {
    AttentionSegment s = random_tree(99, 70, 5);
    for (uint64_t& key : s.context) key = kNan;
    for (AttentionRow& row : s.rows) row.query = row.key = kNan;
    return s;
  }

  const Question& question_;
  std::vector<AttentionSegment> segments_;
  std::vector<float> baseline_;
  std::vector<int64_t> first_;  // of each segment's outputs
};

TEST_P(Attention, SegmentHasTheSameBitsInEveryBatch) {
  const Question& question = GetParam().question;
  const std::vector<AttentionSegment> segments = GetParam().segments();
  std::vector<size_t> backwards(segments.size());
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  for (const Machine& machine : machines()) {
    const BitsOfSegments bits(question, segments, run_attention(*make(machine), question, segments, 1));
    for (int32_t threads = 1; threads <= (machine.name == "ref" ? 1 : 3); ++threads) {
      const std::unique_ptr<Backend> backend = make(machine, threads);
      const std::string what = machine.name + ", " + std::to_string(threads) + " threads";
      ASSERT_NO_FATAL_FAILURE(bits.expect_same(*backend, backwards, 2, what));
      for (size_t i = 0; i < segments.size(); ++i)
        ASSERT_NO_FATAL_FAILURE(bits.expect_same(*backend, {i}, 3 + i, what + ", alone"));
      std::vector<size_t> company = {0, BitsOfSegments::kStranger, segments.size() - 1, BitsOfSegments::kStranger};
      ASSERT_NO_FATAL_FAILURE(bits.expect_same(*backend, company, 4, what + ", beside segments of NaN"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Attention, testing::ValuesIn(attention_cases()),
                         [](const testing::TestParamInfo<AttentionCase>& info) { return info.param.name; });

class AttentionBits : public testing::TestWithParam<AttentionKind> {};

// The row's path as committed text: everything before it in the context, itself alone.
AttentionSegment committed(const AttentionSegment& s, int32_t row) {
  AttentionSegment plain{s.context, {}, true};
  std::vector<uint64_t> path;
  for (int32_t up = s.rows[row].parent; up >= 0; up = s.rows[up].parent) path.push_back(s.rows[up].key);
  plain.context.insert(plain.context.end(), path.rbegin(), path.rend());
  plain.rows.push_back({s.rows[row].query, s.rows[row].key, -1});
  return plain;
}

TEST_P(AttentionBits, TreeNodeEqualsCommittedText) {
  for (int32_t window : {0, 64}) {
    const Question question{GetParam(), Mask::kTree, window};
    for (const Machine& machine : machines()) {
      const std::unique_ptr<Backend> backend = make(machine, 2);
      for (int32_t context : {0, 1, 62, 63, 64, 65, 66, 126, 127, 128, 129, 130}) {
        const AttentionSegment tree = random_tree(context + 1, context, 24);
        std::vector<AttentionSegment> texts;
        for (int32_t row = 0; row < 24; ++row) texts.push_back(committed(tree, row));
        const std::vector<float> as_tree = run_attention(*backend, question, {tree}, 6);
        const std::vector<float> as_text = run_attention(*backend, question, texts, 8);
        ASSERT_TRUE(same_bits(as_tree, as_text)) << machine.name << ", context " << context << ", window " << window;
      }
    }
  }
}

TEST_P(AttentionBits, ChunksEqualOneShot) {
  constexpr int32_t kLength = 150;
  for (int32_t window : {0, 64}) {
    const Question question{GetParam(), Mask::kTree, window};
    const int64_t row_size = static_cast<int64_t>(question.kind.heads) * question.kind.v_dim;
    for (const Machine& machine : machines()) {
      const std::unique_ptr<Backend> backend = make(machine, 2);
      const std::vector<float> whole = run_attention(*backend, question, {chunk(1, 0, kLength)}, 1);
      for (int32_t first : {1, 17, 62, 63, 64, 65, 66, 127, 128, 129, 149}) {
        const std::vector<float> start = run_attention(*backend, question, {chunk(1, 0, first)}, 2);
        const std::vector<float> rest = run_attention(*backend, question, {chunk(1, first, kLength - first)}, 3);
        ASSERT_TRUE(same_bits(start.data(), whole.data(), first * row_size)) << machine.name << ", first " << first;
        ASSERT_TRUE(same_bits(rest.data(), whole.data() + first * row_size, (kLength - first) * row_size))
            << machine.name << ", after " << first;
      }
      std::vector<AttentionSegment> one_by_one;
      for (int32_t i = 0; i < kLength; ++i) one_by_one.push_back(chunk(1, i, 1));
      ASSERT_TRUE(same_bits(run_attention(*backend, question, one_by_one, 5), whole)) << machine.name;
    }
  }
}

// Layers of one pass may differ in their windows, so a backend that plans once per batch must plan again.
TEST_P(AttentionBits, LayersOfOneBatchMayDiffer) {
  const AttentionKind& kind = GetParam();
  std::vector<Question> questions = {{kind}, {kind, Mask::kTree, 40}, {kind, Mask::kBlock}, {kind, Mask::kBlock, 3}};
  questions.insert(questions.end(), questions.rbegin(), questions.rend());
  const std::vector<AttentionSegment> segments = {chunk(1, 65, 9), random_tree(2, 30, 17)};
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine, 2);
    const std::vector<std::vector<float>> together = run_attentions(*backend, questions, segments, 1);
    for (size_t i = 0; i < questions.size(); ++i)
      ASSERT_TRUE(same_bits(together[i], run_attention(*backend, questions[i], segments, 2)))
          << machine.name << ", question " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AttentionBits,
                         testing::Values(kDemoLatent, kOddLatent, kTinyLatent, kDemoGrouped, kOddGrouped, kTinyGrouped),
                         [](const testing::TestParamInfo<AttentionKind>& info) { return info.param.name; });

}  // namespace
}  // namespace ddtree::ops
