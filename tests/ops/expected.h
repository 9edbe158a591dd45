// What each verb must give for one row, in double and straight from its definition, with the bounds of bounded.h.
// Nothing here calls a backend.
#pragma once

#include "bounded.h"
#include "weight_maker.h"

namespace ddtree::ops {

struct Dense {
  int64_t out = 0, in = 0;
  std::vector<double> w;
  const double* row(int64_t o) const { return w.data() + o * in; }
};
Dense dense(const Linear& source);
std::vector<double> doubles(const TensorView& vector);
BoundedVector multiply(const Dense& w, const Bounded* x);
void rotate(Bounded* x, const Rope& rope, int32_t position);

class ExpectedMlp {
 public:
  explicit ExpectedMlp(const MlpSource& s) : gate_(dense(s.gate)), up_(dense(s.up)), down_(dense(s.down)) {}
  BoundedVector row(const BoundedVector& x) const;

 private:
  Dense gate_, up_, down_;
};

class ExpectedMoe {
 public:
  explicit ExpectedMoe(const MoeSource& source);
  BoundedVector row(const BoundedVector& x) const;

 private:
  struct Score {
    Bounded logit, score, biased;
    Bounded rank;  // ordered as the biased scores are
  };
  std::vector<Score> scores(const BoundedVector& x) const;
  std::vector<bool> allowed(const std::vector<Score>& scores) const;

  MoeRouting routing_;
  Dense router_;
  std::vector<double> bias_;
  std::vector<ExpectedMlp> experts_;
  std::vector<ExpectedMlp> shared_;  // none or one
};

class ExpectedMla {
 public:
  explicit ExpectedMla(const MlaSource& source);
  BoundedVector query(const BoundedVector& x, int32_t position) const;      // [H, kv_lora + rope_dim]
  BoundedVector cache_row(const BoundedVector& x, int32_t position) const;  // [kv_lora + rope_dim]
  BoundedVector output(const BoundedVector& attended) const;

 private:
  MlaSource s_;
  Dense q_a_, q_b_, kv_a_, kv_b_, o_;
};

class ExpectedGqa {
 public:
  explicit ExpectedGqa(const GqaSource& source);
  BoundedVector query(const BoundedVector& x, int32_t position) const;
  BoundedVector cache_row(const BoundedVector& x, int32_t position) const;  // keys, then values
  BoundedVector output(const BoundedVector& attended) const { return multiply(o_, attended.data()); }

 private:
  BoundedVector heads(const Dense& w, const TensorView& gain, const BoundedVector& x, int32_t position) const;

  GqaSource s_;
  Dense q_, k_, v_, o_;
};

}  // namespace ddtree::ops
