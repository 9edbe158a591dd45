// Mixture of experts: route each row, run its experts in ascending order, then the shared expert.
#include <algorithm>

#include "backend/ref/math.h"
#include "backend/ref/prepared.h"
#include "backend/ref/ranking.h"
#include "backend/ref/ref_backend.h"
#include "backend/source_check.h"

namespace ddtree::ref {
namespace {

struct Choice {
  int32_t expert;
  double weight;
};

// Scores are float32, as published: a bias of 12 makes two scores of 1e-8 and 2e-8 equal, and the tie is then part of
// the model.
std::vector<float> expert_scores(const RefMoe& w, const float* x) {
  std::vector<double> logits = multiply(w.router, x);
  for (double& l : logits) l = static_cast<float>(l);
  std::vector<float> scores(logits.size());
  if (w.routing.score == MoeRouting::Score::kSigmoid) {
    std::ranges::transform(logits, scores.begin(), sigmoid);
  } else {
    const double largest = *std::ranges::max_element(logits);
    double sum = 0;
    for (double& l : logits) sum += l = std::exp(l - largest);
    std::ranges::transform(logits, scores.begin(), [sum](double e) { return e / sum; });
  }
  return scores;
}

// Experts of the best groups; the others take no part, whatever their biased scores.
std::vector<int32_t> candidates(const MoeRouting& routing, const std::vector<float>& biased) {
  const auto per_group = static_cast<int32_t>(biased.size()) / routing.groups;
  std::vector<float> group_score;
  for (int32_t g = 0; g < routing.groups; ++g) {
    const std::span<const float> group(biased.data() + g * per_group, per_group);
    const std::vector<int32_t> best = largest(group, std::min(per_group, routing.group_by_top2 ? 2 : 1));
    float score = group[best[0]];
    if (best.size() == 2) score += group[best[1]];
    group_score.push_back(score);
  }
  std::vector<int32_t> chosen = largest(group_score, routing.top_groups);
  std::ranges::sort(chosen);
  std::vector<int32_t> experts;
  for (int32_t g : chosen)
    for (int32_t i = 0; i < per_group; ++i) experts.push_back(g * per_group + i);
  return experts;
}

std::vector<Choice> route(const RefMoe& w, const float* x) {
  const std::vector<float> scores = expert_scores(w, x);
  std::vector<float> biased = scores;
  for (size_t e = 0; e < w.bias.size(); ++e) biased[e] += w.bias[e];

  const std::vector<int32_t> allowed = candidates(w.routing, biased);
  std::vector<float> contest;
  for (int32_t e : allowed) contest.push_back(biased[e]);
  std::vector<Choice> choices;
  double sum = 1e-20;
  for (int32_t i : largest(contest, w.routing.top_k)) {
    choices.push_back({allowed[i], scores[allowed[i]]});
    sum += choices.back().weight;
  }
  for (Choice& c : choices) c.weight = (w.routing.normalise ? c.weight / sum : c.weight) * w.routing.scale;
  std::ranges::sort(choices, {}, &Choice::expert);
  return choices;
}

}  // namespace

Result<std::unique_ptr<PreparedMoe>> RefBackend::prepare(const MoeSource& source) {
  TRY(check_source(source));
  auto w = std::make_unique<RefMoe>();
  w->routing = source.routing;
  TRY_ASSIGN(w->router, load_matrix(source.router));
  w->bias = load_vector(source.bias);
  for (const MlpSource& expert : source.experts) {
    TRY_ASSIGN(Mlp mlp, load_mlp(expert));
    w->experts.push_back(std::move(mlp));
  }
  TRY_ASSIGN(w->shared, load_mlp(source.shared));
  return std::unique_ptr<PreparedMoe>(std::move(w));
}

void RefBackend::moe(TensorView out, TensorView x, const PreparedMoe& prepared) {
  const auto& w = static_cast<const RefMoe&>(prepared);
  expect(x, {x.rows(), w.router.in});
  expect(out, {x.rows(), w.router.in});
  std::vector<bool> used(w.experts.size());
  for (int64_t t = 0; t < x.rows(); ++t) {
    const float* row = x.row<float>(t);
    std::vector<double> sum(w.router.in);
    for (const Choice& c : route(w, row)) {
      const std::vector<double> y = run_mlp(w.experts[c.expert], row);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += c.weight * y[i];
      used[c.expert] = true;
    }
    if (!w.shared.gate.empty()) {
      const std::vector<double> y = run_mlp(w.shared, row);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
    }
    std::ranges::copy(sum, out.row<float>(t));
  }
  const auto read = [this](const Mlp& mlp) {
    for (const Matrix* m : {&mlp.gate, &mlp.up, &mlp.down}) count(*m);
  };
  count(w.router);
  read(w.shared);
  for (size_t e = 0; e < used.size(); ++e)
    if (used[e]) read(w.experts[e]);
}

}  // namespace ddtree::ref
