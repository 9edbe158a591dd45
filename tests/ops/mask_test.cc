// Which keys a row sees, exhaustively: change one key at a time, and exactly the rows that may see it must change.
#include <gtest/gtest.h>

#include "attention_run.h"
#include "guarded.h"
#include "machines.h"

namespace ddtree::ops {
namespace {

using Mask = AttendSpec::Mask;

constexpr uint64_t kOther = uint64_t{1} << 40;  // added to a key's number: different contents

// May row `row` see the key at `position` of the context, or of row `other`?
bool in_window(const Question& q, const AttentionSegment& s, int32_t row, int32_t position) {
  return q.window == 0 || s.position(row) - position < q.window;
}

void expect_changed(const Question& question, const std::vector<float>& before, const std::vector<float>& after,
                    const std::function<bool(int32_t)>& may_see, const std::string& what) {
  const int64_t width = static_cast<int64_t>(question.kind.heads) * question.kind.v_dim;
  for (int32_t row = 0; row < static_cast<int32_t>(before.size() / width); ++row) {
    const bool same = same_bits(before.data() + row * width, after.data() + row * width, width);
    ASSERT_EQ(!same, may_see(row)) << what << ", row " << row;
  }
}

void check_every_key(const Question& question, const AttentionSegment& segment) {
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    const std::vector<float> before = run_attention(*backend, question, {segment}, 1);
    for (int32_t j = 0; j < static_cast<int32_t>(segment.context.size()); ++j) {
      AttentionSegment changed = segment;
      changed.context[j] += kOther;
      const auto may_see = [&](int32_t row) { return in_window(question, segment, row, j); };
      ASSERT_NO_FATAL_FAILURE(expect_changed(question, before, run_attention(*backend, question, {changed}, 2), may_see,
                                             machine.name + ", context key " + std::to_string(j)));
    }
    for (int32_t i = 0; i < static_cast<int32_t>(segment.rows.size()); ++i) {
      AttentionSegment changed = segment;
      changed.rows[i].key += kOther;
      const auto may_see = [&](int32_t row) {
        return (question.mask == Mask::kBlock || segment.sees(row, i)) &&
               in_window(question, segment, row, segment.position(i));
      };
      ASSERT_NO_FATAL_FAILURE(expect_changed(question, before, run_attention(*backend, question, {changed}, 2), may_see,
                                             machine.name + ", key of row " + std::to_string(i)));
    }
  }
}

TEST(Mask, TreeRowSeesContextAncestorsAndItself) {
  for (int32_t rows : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129})
    ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyLatent}, random_tree(rows, rows % 7, rows))) << rows << " rows";
  ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyGrouped}, random_tree(1, 67, 33)));
}

TEST(Mask, TreeOf256Rows) { check_every_key({kTinyLatent}, random_tree(3, 2, 256)); }

TEST(Mask, ChainAndStar) {
  AttentionSegment chain = chunk(1, 3, 70);
  chain.tree = true;
  ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyLatent}, chain));
  AttentionSegment star = chunk(2, 3, 70);
  star.tree = true;
  for (size_t i = 1; i < star.rows.size(); ++i) star.rows[i].parent = 0;
  ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyGrouped}, star));
}

TEST(Mask, ChunkRowSeesRowsUpToItself) {
  for (int32_t context : {0, 1, 63, 64, 65})
    ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyLatent}, chunk(context, context, 17)));
  ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyGrouped}, chunk(5, 60, 70)));
}

TEST(Mask, BlockRowSeesTheWholeBlock) {
  for (int32_t context : {0, 1, 64, 66})
    ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyGrouped, Mask::kBlock}, chunk(context, context, 16)));
}

TEST(Mask, WindowCountsPositions) {
  for (int32_t window : {1, 2, 7, 64, 65}) {
    ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyGrouped, Mask::kTree, window}, random_tree(4, 66, 20)));
    ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyLatent, Mask::kTree, window}, chunk(4, 66, 9)));
    ASSERT_NO_FATAL_FAILURE(check_every_key({kTinyGrouped, Mask::kBlock, window}, chunk(4, 66, 16)));
  }
}

}  // namespace
}  // namespace ddtree::ops
