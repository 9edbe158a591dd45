// Every row verb on every backend: against its definition and the oracle, and a row's bits across batches and threads.
#include <gtest/gtest.h>

#include "guarded.h"
#include "machines.h"
#include "op_cases.h"

namespace ddtree::ops {
namespace {

class RowVerbs : public testing::TestWithParam<OpCase> {};

std::vector<Row> make_rows(const RowVerb& verb, const std::vector<int32_t>& ids) {
  std::vector<Row> rows;
  for (int32_t id : ids) rows.push_back(verb.row(id));
  return rows;
}

std::vector<int32_t> first_ids(int32_t n) {
  std::vector<int32_t> ids(n);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// `from` onwards, around the end of [0, n).
std::vector<int32_t> window_of_ids(int32_t n, int32_t from, int32_t count) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < count; ++i) ids.push_back((from + i) % n);
  return ids;
}

void expect_close(std::span<const float> got, const BoundedVector& want, double share, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const auto [value, error] = want[i];
    if (std::isinf(error)) continue;
    const double allowed = share * error + 1.001 * kUnit * std::fabs(value) + 1e-37;
    ASSERT_LE(std::fabs(got[i] - value), allowed) << what << ", output " << i << ": " << got[i] << " for " << value;
  }
}

void judge(const RowVerb& verb, std::span<const float> got, const BoundedVector& want, double share,
           const std::string& what) {
  SCOPED_TRACE(what);
  expect_close(got, want, share, what);
  if (verb.check) verb.check(got);
}

// The oracle rounds once per output, and its router works on float32 scores: an eighth of what others may lose. Others
// are judged against the oracle's value, so the oracle's rounding comes on top of their own bound.
TEST_P(RowVerbs, AgreeWithDefinitionAndOracle) {
  const RowVerb verb = GetParam().make();
  const std::vector<Row> rows = make_rows(verb, first_ids(verb.rows));
  const std::unique_ptr<Backend> ref = make_ref();
  const std::vector<float> oracle = verb.prepare(*ref)(rows);
  std::vector<BoundedVector> bounds;
  for (size_t t = 0; t < rows.size(); ++t) {
    const std::span<const float> got = std::span(oracle).subspan(t * verb.out, verb.out);
    const std::string what = "ref, row " + std::to_string(t);
    bounds.push_back(verb.expected(rows[t]));
    ASSERT_NO_FATAL_FAILURE(judge(verb, got, bounds.back(), 0.125, what));
    for (int64_t i = 0; i < verb.out; ++i) bounds.back()[i].value = got[i];
  }
  for (const Machine& machine : judged_machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    const std::vector<float> all = verb.prepare(*backend)(rows);
    for (size_t t = 0; t < rows.size(); ++t) {
      const std::span<const float> got = std::span(all).subspan(t * verb.out, verb.out);
      const std::string what = machine.name + ", row " + std::to_string(t);
      ASSERT_NO_FATAL_FAILURE(judge(verb, got, bounds[t], 1, what));
    }
  }
}

class BitsOfRows {
 public:
  BitsOfRows(const RowVerb& verb, std::vector<float> baseline) : verb_(verb), baseline_(std::move(baseline)) {}

  void expect_same(const Runner& run, const std::vector<int32_t>& ids, const std::string& what) const {
    const std::vector<float> got = run(make_rows(verb_, ids));
    for (size_t t = 0; t < ids.size(); ++t) {
      if (ids[t] == kNanRow) continue;
      ASSERT_TRUE(same_bits(got.data() + t * verb_.out, baseline_.data() + ids[t] * verb_.out, verb_.out))
          << what << ": row " << ids[t] << " at place " << t << " of " << ids.size();
    }
  }

 private:
  const RowVerb& verb_;
  std::vector<float> baseline_;
};

TEST_P(RowVerbs, RowHasTheSameBitsInEveryBatch) {
  const RowVerb verb = GetParam().make();
  const int32_t n = verb.rows;
  for (const Machine& machine : machines()) {
    const bool oracle = machine.name == "ref";  // slow, and its loops know nothing of other rows or threads
    const BitsOfRows bits(verb, verb.prepare(*make(machine))(make_rows(verb, first_ids(n))));
    for (int32_t threads = 1; threads <= (oracle ? 1 : 3); ++threads) {
      const std::unique_ptr<Backend> backend = make(machine, threads);
      const Runner run = verb.prepare(*backend);
      const std::string what = machine.name + ", " + std::to_string(threads) + " threads";
      for (int32_t count : oracle ? std::vector{1, 17} : std::vector{1, 2, 15, 16, 17, 31, 33, 64, 65, 127, 257}) {
        if (count > n) break;
        ASSERT_NO_FATAL_FAILURE(bits.expect_same(run, window_of_ids(n, 37 * count, count), what));
      }
      ASSERT_NO_FATAL_FAILURE(bits.expect_same(run, {}, what + ", no rows"));
      std::vector<int32_t> shuffled = Random(threads).permutation(n);
      shuffled.resize(33);
      ASSERT_NO_FATAL_FAILURE(bits.expect_same(run, shuffled, what + ", shuffled"));
      shuffled[0] = shuffled[16] = shuffled[32] = kNanRow;
      ASSERT_NO_FATAL_FAILURE(bits.expect_same(run, shuffled, what + ", beside rows of NaN"));
      for (int32_t id = 0; id < 16; ++id) ASSERT_NO_FATAL_FAILURE(bits.expect_same(run, {id}, what + ", alone"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RowVerbs, testing::ValuesIn(op_cases()),
                         [](const testing::TestParamInfo<OpCase>& info) { return info.param.name; });

}  // namespace
}  // namespace ddtree::ops
