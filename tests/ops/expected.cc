#include "expected.h"

#include <gtest/gtest.h>

namespace ddtree::ops {
namespace {

void normalise(Bounded* x, const TensorView& gain, double eps) { normalise(x, doubles(gain), eps); }

}  // namespace

Dense dense(const Linear& source) {
  Dense d{source.out, source.in, {}};
  if (source.empty()) return d;
  for (int64_t o = 0; o < d.out; ++o)
    for (int64_t i = 0; i < d.in; ++i) d.w.push_back(weight_value(source, o, i));
  return d;
}

std::vector<double> doubles(const TensorView& vector) {
  std::vector<double> d;
  for (int64_t i = 0; i < vector.elements(); ++i) d.push_back(vector_value(vector, i));
  return d;
}

BoundedVector multiply(const Dense& w, const Bounded* x) {
  BoundedVector y(w.out);
  for (int64_t o = 0; o < w.out; ++o) y[o] = dot(w.row(o), x, w.in);
  return y;
}

// Cosine and sine may each be off by their own rounding and the amplitude's, never by the angle's: it is a float32
// product.
void rotate(Bounded* x, const Rope& rope, int32_t position) {
  for (int32_t i = 0; i < rope.dim / 2; ++i) {
    Bounded& a = rope.interleaved ? x[2 * i] : x[i];
    Bounded& b = rope.interleaved ? x[2 * i + 1] : x[i + rope.dim / 2];
    const double angle = static_cast<float>(position) * static_cast<float>(rope.inv_freq[i]);
    const double amplitude = rope.amplitude;
    const Bounded c{std::cos(angle) * amplitude, 2 * kUnit * amplitude};
    const Bounded s{std::sin(angle) * amplitude, 2 * kUnit * amplitude};
    const Bounded first = a * c + -1.0 * (b * s);
    b = a * s + b * c;
    a = first;
  }
}

BoundedVector ExpectedMlp::row(const BoundedVector& x) const {
  BoundedVector inner = multiply(gate_, x.data());
  const BoundedVector up = multiply(up_, x.data());
  for (size_t i = 0; i < inner.size(); ++i) inner[i] = silu(inner[i]) * up[i];
  return multiply(down_, inner.data());
}

ExpectedMoe::ExpectedMoe(const MoeSource& source)
    : routing_(source.routing), router_(dense(source.router)), bias_(doubles(source.bias)) {
  for (const MlpSource& expert : source.experts) experts_.emplace_back(expert);
  if (!source.shared.gate.empty()) shared_.emplace_back(source.shared);
  CHECK(bias_.empty() || routing_.score == MoeRouting::Score::kSigmoid);
  bias_.resize(experts_.size());
}

std::vector<ExpectedMoe::Score> ExpectedMoe::scores(const BoundedVector& x) const {
  const BoundedVector logits = multiply(router_, x.data());
  double sum = 0, widest = 0;
  for (Bounded l : logits) {
    sum += std::exp(l.value);
    widest = std::max(widest, l.error + kUnit * std::fabs(l.value));
  }
  std::vector<Score> scores;
  for (size_t e = 0; e < logits.size(); ++e) {
    Score s{logits[e], sigmoid(logits[e]), {}, {}};
    s.biased = s.rank = s.score + Bounded{bias_[e], 0};
    if (routing_.score == MoeRouting::Score::kSoftmax) {
      const double p = std::exp(logits[e].value) / sum;
      s.biased = s.score = {p, p * (2 * widest + gamma(static_cast<int64_t>(logits.size())) + 16 * kUnit)};
      // The divisor is the same for all: their order is that of the logits, up to the rounding of each exponential.
      s.rank = {logits[e].value, logits[e].error + kUnit * (8 + 2 * std::fabs(logits[e].value))};
    }
    scores.push_back(s);
  }
  return scores;
}

std::vector<bool> ExpectedMoe::allowed(const std::vector<Score>& scores) const {
  const size_t per_group = scores.size() / routing_.groups;
  std::vector<Bounded> group;
  for (int32_t g = 0; g < routing_.groups; ++g) {
    BoundedVector members;
    for (size_t i = 0; i < per_group; ++i) members.push_back(scores[g * per_group + i].biased);
    std::ranges::sort(members, std::greater(), &Bounded::value);
    group.push_back(routing_.group_by_top2 && per_group > 1 ? members[0] + members[1] : members[0]);
  }
  std::vector<bool> allowed(scores.size());
  for (int32_t g = 0; g < routing_.groups; ++g) {
    int32_t better = 0;
    for (int32_t other = 0; other < routing_.groups; ++other) {
      if (other == g) continue;
      const double lead = group[other].value - group[g].value;
      better += lead > 0 || (lead == 0 && other < g);
      const bool close = std::fabs(lead) <= group[other].error + group[g].error && lead != 0;
      EXPECT_FALSE(close) << "groups " << g << " and " << other << " are too close for this case; change its seed";
    }
    for (size_t i = 0; i < per_group; ++i) allowed[g * per_group + i] = better < routing_.top_groups;
  }
  return allowed;
}

BoundedVector ExpectedMoe::row(const BoundedVector& x) const {
  const std::vector<Score> all = scores(x);
  const std::vector<bool> take_part = allowed(all);
  std::vector<size_t> chosen;
  Bounded sum{1e-20, 0};
  for (size_t e = 0; e < all.size(); ++e) {
    int32_t better = 0;
    bool close = false;
    for (size_t other = 0; other < all.size(); ++other) {
      if (other == e || !take_part[other]) continue;
      const double lead = all[other].rank.value - all[e].rank.value;
      const bool tie = lead == 0 && all[e].logit.error == 0 && all[other].logit.error == 0;
      better += lead > 0 || (lead == 0 && other < e);
      close = close || (!tie && std::fabs(lead) <= all[other].rank.error + all[e].rank.error);
    }
    if (!take_part[e]) continue;
    const bool at_border = better == routing_.top_k - 1 || better == routing_.top_k;
    EXPECT_FALSE(close && at_border) << "expert " << e << " is too close to call; change the case's seed";
    if (better >= routing_.top_k) continue;
    chosen.push_back(e);
    sum = sum + all[e].score;
  }
  BoundedVector y(x.size());
  for (size_t e : chosen) {
    Bounded weight = all[e].score;
    if (routing_.normalise) {
      weight.error = (weight.error + weight.value / sum.value * sum.error) / sum.value;
      weight.value /= sum.value;
    }
    weight = static_cast<double>(routing_.scale) * weight;
    const BoundedVector part = experts_[e].row(x);
    for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] + weight * part[i];
  }
  for (const ExpectedMlp& shared : shared_) {
    const BoundedVector part = shared.row(x);
    for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] + part[i];
  }
  return y;
}

ExpectedMla::ExpectedMla(const MlaSource& s)
    : s_(s), q_a_(dense(s.q_a)), q_b_(dense(s.q_b)), kv_a_(dense(s.kv_a)), kv_b_(dense(s.kv_b)), o_(dense(s.o)) {}

BoundedVector ExpectedMla::query(const BoundedVector& x, int32_t position) const {
  BoundedVector full;
  if (s_.q_a.empty()) {
    full = multiply(q_b_, x.data());
  } else {
    BoundedVector low = multiply(q_a_, x.data());
    normalise(low.data(), s_.q_a_norm, s_.norm_eps);
    full = multiply(q_b_, low.data());
  }
  BoundedVector q;
  for (int32_t h = 0; h < s_.heads; ++h) {
    Bounded* head = full.data() + h * (s_.nope + s_.rope_dim);
    rotate(head + s_.nope, s_.rope, position);
    for (int32_t j = 0; j < s_.kv_lora; ++j) {
      std::vector<double> column;  // W_UK[h][:, j]
      for (int32_t i = 0; i < s_.nope; ++i) column.push_back(kv_b_.row(h * (s_.nope + s_.v) + i)[j]);
      q.push_back(dot(column.data(), head, s_.nope));
    }
    q.insert(q.end(), head + s_.nope, head + s_.nope + s_.rope_dim);
  }
  return q;
}

BoundedVector ExpectedMla::cache_row(const BoundedVector& x, int32_t position) const {
  BoundedVector row = multiply(kv_a_, x.data());
  normalise(row.data(), s_.kv_a_norm, s_.norm_eps);
  rotate(row.data() + s_.kv_lora, s_.rope, position);
  return row;
}

BoundedVector ExpectedMla::output(const BoundedVector& attended) const {
  BoundedVector values;
  for (int32_t h = 0; h < s_.heads; ++h)
    for (int32_t i = 0; i < s_.v; ++i)
      values.push_back(
          dot(kv_b_.row(h * (s_.nope + s_.v) + s_.nope + i), attended.data() + h * s_.kv_lora, s_.kv_lora));
  return multiply(o_, values.data());
}

ExpectedGqa::ExpectedGqa(const GqaSource& s) : s_(s), q_(dense(s.q)), k_(dense(s.k)), v_(dense(s.v)), o_(dense(s.o)) {}

BoundedVector ExpectedGqa::heads(const Dense& w, const TensorView& gain, const BoundedVector& x,
                                 int32_t position) const {
  BoundedVector y = multiply(w, x.data());
  for (size_t at = 0; at < y.size(); at += s_.head_dim) {
    if (!gain.empty()) normalise(y.data() + at, gain, s_.norm_eps);
    rotate(y.data() + at, s_.rope, position);
  }
  return y;
}

BoundedVector ExpectedGqa::query(const BoundedVector& x, int32_t position) const {
  return heads(q_, s_.q_norm, x, position);
}

BoundedVector ExpectedGqa::cache_row(const BoundedVector& x, int32_t position) const {
  BoundedVector row = heads(k_, s_.k_norm, x, position);
  const BoundedVector values = multiply(v_, x.data());
  row.insert(row.end(), values.begin(), values.end());
  return row;
}

}  // namespace ddtree::ops
