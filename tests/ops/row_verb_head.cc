// The head as a row verb: [k values | k ids | lse | logits].
#include <gtest/gtest.h>

#include "expected.h"
#include "row_run.h"

namespace ddtree::ops {
namespace {

std::vector<float> run_head(Backend& backend, std::span<const Row> rows, const PreparedLinear& w, int64_t hidden,
                            int64_t k, int64_t vocabulary, bool want_logits) {
  RowRun run(backend, rows);
  HeadResult result;
  result.top_value = run.output(k);
  result.top_id = run.output(DType::kI32, k);
  const TensorView lse = run.output(1);
  result.lse = TensorView(lse.data, DType::kF32, {run.rows()});
  if (want_logits) result.logits = run.output(vocabulary);
  backend.head(result, run.input(0, hidden), w);
  return run.finish();
}

// The top follows from the row's own logits exactly: entry i has i logits before it in the order (value, then id).
// lse: exp may cost 8u plus |l − max|·u for its argument; the sum costs gamma(n); the logarithm passes a relative error
// on as an absolute one, and the result is rounded.
void check_head_row(std::span<const float> row, int64_t k) {
  const std::span<const float> logits = row.subspan(2 * k + 1);
  for (int64_t i = 0; i < k; ++i) {
    const auto id = static_cast<int64_t>(row[k + i]);
    ASSERT_TRUE(id >= 0 && id < std::ssize(logits));
    EXPECT_EQ(row[i], logits[id]);
    int64_t before = 0;
    for (int64_t other = 0; other < std::ssize(logits); ++other)
      before += logits[other] > logits[id] || (logits[other] == logits[id] && other < id);
    EXPECT_EQ(before, i) << "id " << id << " is not the " << i << "th largest";
  }
  const double largest = *std::ranges::max_element(logits);
  double sum = 0, spread = 0;
  for (float l : logits) {
    sum += std::exp(l - largest);
    spread += std::exp(l - largest) * (largest - l);
  }
  const double lse = largest + std::log(sum);
  EXPECT_NEAR(row[2 * k], lse, gamma(std::ssize(logits)) + kUnit * (16 + spread / sum + 2 * std::fabs(lse)));
}

}  // namespace

RowVerb head_verb(int32_t vocabulary, int64_t hidden, int64_t k, Storage storage) {
  struct Weights {
    WeightMaker maker{7};
    Linear source;
    Dense whole;
  };
  auto weights = std::make_shared<Weights>();
  weights->source = weights->maker.linear(vocabulary, hidden, storage);
  weights->whole = dense(weights->source);
  RowVerb verb{.in = hidden, .out = 2 * k + 1 + vocabulary, .rows = 65, .prepare = {}, .expected = {}};
  verb.prepare = [weights, hidden, k, vocabulary](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(std::span<const Linear>(&weights->source, 1)));
    return [&backend, w, hidden, k, vocabulary](std::span<const Row> rows) {
      const std::vector<float> full = run_head(backend, rows, *w, hidden, k, vocabulary, true);
      const std::vector<float> top = run_head(backend, rows, *w, hidden, k, vocabulary, false);
      const int64_t short_row = 2 * k + 1;
      for (size_t r = 0; r < rows.size(); ++r)
        EXPECT_TRUE(same_bits(full.data() + r * (short_row + vocabulary), top.data() + r * short_row, short_row))
            << "the top depends on whether logits are wanted";
      return full;
    };
  };
  verb.expected = [weights, k](const Row& row) {
    BoundedVector all(2 * k + 1, {0, std::numeric_limits<double>::infinity()});  // check_head_row judges these
    const BoundedVector logits = multiply(weights->whole, exact(row.x).data());
    all.insert(all.end(), logits.begin(), logits.end());
    return all;
  };
  verb.check = [k](std::span<const float> row) { check_head_row(row, k); };
  return verb;
}

}  // namespace ddtree::ops
