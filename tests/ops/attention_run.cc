#include "attention_run.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/checked.h"
#include "guarded.h"

namespace ddtree::ops {
namespace {

constexpr int32_t kSpare = 3;  // pages and scratch rows that belong to nobody; they hold NaN

std::vector<float> contents(uint64_t seed, uint64_t number, int64_t n) {
  if (number == kNan) return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
  return Random(seed, number).normals(n);
}

// The batch of some segments and where each key lies.
class Placement {
 public:
  Placement(const std::vector<AttentionSegment>& segments, uint64_t layout) {
    const bool into_pages = layout % 2 == 1;
    int32_t page_count = kSpare, scratch_count = kSpare;
    for (const AttentionSegment& s : segments) {
      page_count += pages_of(s, into_pages);
      scratch_count += static_cast<int32_t>(s.rows.size());
    }
    Random random(layout);
    const std::vector<int32_t> page = random.permutation(page_count);
    const std::vector<int32_t> scratch = random.permutation(scratch_count);
    cache_rows_ = page_count * kPageRows + scratch_count;
    size_t next_page = 0, next_scratch = 0;
    for (const AttentionSegment& s : segments) {
      const int32_t own_pages = pages_of(s, into_pages);
      pages_.emplace_back(page.begin() + next_page, page.begin() + next_page + own_pages);
      next_page += own_pages;
      add(s, into_pages && !s.tree, page_count * kPageRows, scratch, next_scratch);
    }
  }

  const Batch& batch() const { return batch_; }
  int32_t cache_rows() const { return cache_rows_; }
  const std::vector<std::pair<int32_t, uint64_t>>& keys() const { return keys_; }

 private:
  static int32_t pages_of(const AttentionSegment& s, bool into_pages) {
    const size_t in_pages = s.context.size() + (into_pages && !s.tree ? s.rows.size() : 0);
    return static_cast<int32_t>(ceil_div(static_cast<int64_t>(in_pages), kPageRows));
  }

  void add(const AttentionSegment& s, bool into_pages, int32_t scratch_base, const std::vector<int32_t>& scratch,
           size_t& next_scratch) {
    const std::vector<int32_t>& pages = pages_.back();
    const auto slot = [&pages](int32_t position) {
      return pages[position / kPageRows] * kPageRows + position % kPageRows;
    };
    const auto context = static_cast<int32_t>(s.context.size());
    const auto rows = static_cast<int32_t>(s.rows.size());
    batch_.segments.push_back({.stream = static_cast<int32_t>(batch_.segments.size()),
                               .first_row = batch_.rows(),
                               .rows = rows,
                               .context = context,
                               .tree = s.tree,
                               .pages = pages});
    for (int32_t j = 0; j < context; ++j) keys_.emplace_back(slot(j), s.context[j]);
    const int32_t first = batch_.rows();
    for (int32_t i = 0; i < rows; ++i) {
      const int32_t at = into_pages ? slot(context + i) : scratch_base + scratch[next_scratch++];
      keys_.emplace_back(at, s.rows[i].key);
      batch_.token.push_back(0);
      batch_.position.push_back(s.position(i));
      batch_.kv_row.push_back(at);
      AncestorWords words = {};
      if (s.tree) {
        if (s.rows[i].parent >= 0) words = batch_.ancestors[first + s.rows[i].parent];
        words[i / 64] |= uint64_t{1} << (i % 64);
      }
      batch_.ancestors.push_back(words);
    }
  }

  Batch batch_;
  std::deque<std::vector<int32_t>> pages_;
  std::vector<std::pair<int32_t, uint64_t>> keys_;
  int32_t cache_rows_ = 0;
};

}  // namespace

const AttentionKind kDemoLatent = {"latent_demo", 4, 1, 576, 512, true};
const AttentionKind kOddLatent = {"latent_odd", 3, 1, 80, 64, true};
const AttentionKind kTinyLatent = {"latent_tiny", 1, 1, 10, 7, true};
const AttentionKind kDemoGrouped = {"grouped_demo", 4, 2, 64, 64, false};
const AttentionKind kOddGrouped = {"grouped_odd", 3, 1, 40, 40, false};
const AttentionKind kTinyGrouped = {"grouped_tiny", 2, 2, 8, 8, false};

std::vector<float> key_values(const AttentionKind& kind, uint64_t key) { return contents(1, key, kind.width()); }
std::vector<float> query_values(const AttentionKind& kind, uint64_t query) {
  return contents(2, query, static_cast<int64_t>(kind.heads) * kind.qk_dim);
}

int32_t AttentionSegment::depth(int32_t row) const {
  int32_t depth = 0;
  for (int32_t up = rows[row].parent; up >= 0; up = rows[up].parent) ++depth;
  return depth;
}

bool AttentionSegment::sees(int32_t row, int32_t other) const {
  for (int32_t up = row; up >= 0; up = rows[up].parent)
    if (up == other) return true;
  return false;
}

AttentionSegment chunk(uint64_t seed, int32_t context, int32_t rows) {
  AttentionSegment s{{}, {}, false};
  for (int32_t j = 0; j < context; ++j) s.context.push_back(seed * 100000 + j);
  for (int32_t i = 0; i < rows; ++i) {
    const uint64_t id = seed * 100000 + context + i;
    s.rows.push_back({id, id, i - 1});
  }
  return s;
}

AttentionSegment random_tree(uint64_t seed, int32_t context, int32_t rows) {
  AttentionSegment s = chunk(seed, context, rows);
  s.tree = true;
  Random random(seed);
  for (int32_t i = 1; i < rows; ++i)
    s.rows[i].parent = static_cast<int32_t>(random.below(2) ? i - 1 - random.below(std::min(i, 4)) : random.below(i));
  return s;
}

AttendSpec Question::spec() const {
  return {mask,  1 / std::sqrt(static_cast<float>(kind.qk_dim)), kind.heads, kind.kv_heads, kind.qk_dim, kind.v_dim,
          window};
}

std::vector<float> run_attention(Backend& backend, const Question& question,
                                 const std::vector<AttentionSegment>& segments, uint64_t layout) {
  return run_attentions(backend, {question}, segments, layout).front();
}

std::vector<std::vector<float>> run_attentions(Backend& backend, const std::vector<Question>& questions,
                                               const std::vector<AttentionSegment>& segments, uint64_t layout) {
  const AttentionKind& kind = questions.front().kind;
  const Placement placement(segments, layout);
  const Guarded cache(backend, DType::kF32, {placement.cache_rows(), kind.width()});
  for (const auto& [row, key] : placement.keys())
    std::ranges::copy(key_values(kind, key), cache.view().row<float>(row));
  std::vector<float> queries;
  for (const AttentionSegment& s : segments)
    for (const AttentionRow& row : s.rows)
      std::ranges::copy(query_values(kind, row.query), std::back_inserter(queries));
  const int64_t rows = placement.batch().rows(), heads = kind.heads, v_dim = kind.v_dim;
  const Guarded q(backend, {rows, heads, kind.qk_dim}, queries);
  const std::vector<float> cache_before = cache.values();

  backend.stage(placement.batch());
  std::deque<Guarded> outputs;
  for (const Question& question : questions) {
    const Guarded& out = outputs.emplace_back(backend, DType::kF32, std::initializer_list{rows, heads, v_dim});
    backend.attend(out.view(), q.view(), cache.view(), question.spec());
  }
  EXPECT_TRUE(backend.finish().ok());
  std::vector<std::vector<float>> results;
  for (const Guarded& out : outputs) {
    out.expect_guards();
    results.push_back(out.values());
  }
  cache.expect_guards();
  q.expect_guards();
  EXPECT_TRUE(same_bits(cache.values(), cache_before)) << "attend wrote to the cache";
  EXPECT_TRUE(same_bits(q.values(), queries)) << "attend wrote to the queries";
  return results;
}

// A score of n products costs gamma(n)·Σ|q||k| and the roundings of the scale. A weight's relative error is its score's
// absolute one plus the largest's, plus the exponential's own (8u, and |s − max|·u for its argument). The weighted mean
// then moves by Σ p·|v − mean|·δ; its sums cost gamma(keys), and each of the border rescalings (one per 64 keys) and
// the quotient a rounding more.
BoundedVector expected_attention(const Question& question, const AttentionSegment& segment, int32_t row) {
  const AttentionKind& kind = question.kind;
  const int32_t own = segment.position(row);
  const auto context = static_cast<int32_t>(segment.context.size());
  const auto in_window = [&](int32_t position) { return question.window == 0 || own - position < question.window; };
  std::vector<std::vector<float>> keys;
  for (int32_t j = 0; j < context; ++j)
    if (in_window(j)) keys.push_back(key_values(kind, segment.context[j]));
  for (int32_t other = 0; other < static_cast<int32_t>(segment.rows.size()); ++other) {
    const bool visible = question.mask == AttendSpec::Mask::kBlock || segment.sees(row, other);
    if (visible && in_window(segment.position(other))) keys.push_back(key_values(kind, segment.rows[other].key));
  }

  const std::vector<float> q = query_values(kind, segment.rows[row].query);
  const auto n = static_cast<int64_t>(keys.size());
  const double scale = question.spec().scale;
  const double sums = gamma(n) + kUnit * static_cast<double>(n / kPageRows + 4);
  BoundedVector out;
  for (int32_t h = 0; h < kind.heads; ++h) {
    const int64_t group = h / (kind.heads / kind.kv_heads);
    std::vector<double> score(n), error(n);
    for (int64_t i = 0; i < n; ++i) {
      double magnitude = 0;
      for (int32_t d = 0; d < kind.qk_dim; ++d) {
        const double product = static_cast<double>(q[h * kind.qk_dim + d]) * keys[i][group * kind.qk_dim + d];
        score[i] += scale * product;
        magnitude += std::fabs(scale * product);
      }
      error[i] = (gamma(kind.qk_dim) + 2 * kUnit) * magnitude;
    }
    const double largest = *std::ranges::max_element(score);
    const double worst = *std::ranges::max_element(error);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      error[i] += worst + kUnit * (8 + 2 * (largest - score[i]));
      sum += score[i] = std::exp(score[i] - largest);
    }
    const int64_t value_at = kind.latent ? 0 : static_cast<int64_t>(kind.kv_heads) * kind.qk_dim + group * kind.v_dim;
    for (int32_t d = 0; d < kind.v_dim; ++d) {
      Bounded mean;
      double magnitude = 0;
      for (int64_t i = 0; i < n; ++i) mean.value += score[i] / sum * keys[i][value_at + d];
      for (int64_t i = 0; i < n; ++i) {
        const double v = keys[i][value_at + d];
        magnitude += score[i] / sum * std::fabs(v);
        mean.error += score[i] / sum * std::fabs(v - mean.value) * error[i];
      }
      mean.error += sums * (magnitude + std::fabs(mean.value));
      out.push_back(mean);
    }
  }
  return out;
}

}  // namespace ddtree::ops
