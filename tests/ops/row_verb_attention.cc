// The row verbs around attention.
#include "expected.h"
#include "row_run.h"

namespace ddtree::ops {
namespace {

constexpr float kEps = 1e-6f;

struct MlaWeights {
  WeightMaker maker{5};
  MlaSource source;
  explicit MlaWeights(const MlaSizes& sizes) : source(make_mla(maker, sizes)) {}
};
struct GqaWeights {
  WeightMaker maker{6};
  GqaSource source;
  explicit GqaWeights(const GqaSizes& sizes) : source(make_gqa(maker, sizes)) {}
};

BoundedVector joined(BoundedVector a, const BoundedVector& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

MlaSource make_mla(WeightMaker& maker, const MlaSizes& sizes) {
  MlaSource s;
  s.heads = sizes.heads;
  s.kv_lora = sizes.kv_lora;
  s.nope = sizes.nope;
  s.rope_dim = sizes.rope;
  s.v = sizes.v;
  s.norm_eps = kEps;
  s.rope = make_rope(sizes.rope, sizes.interleaved, 50000, sizes.amplitude);
  const int64_t query = static_cast<int64_t>(sizes.heads) * (sizes.nope + sizes.rope);
  if (sizes.q_lora > 0) {
    s.q_a = maker.linear(sizes.q_lora, sizes.hidden, sizes.storage);
    s.q_a_norm = maker.gain(sizes.q_lora);
  }
  s.q_b = maker.linear(query, sizes.q_lora > 0 ? sizes.q_lora : sizes.hidden, sizes.storage);
  s.kv_a = maker.linear(sizes.kv_lora + sizes.rope, sizes.hidden, sizes.storage);
  s.kv_a_norm = maker.gain(sizes.kv_lora);
  s.kv_b = maker.linear(static_cast<int64_t>(sizes.heads) * (sizes.nope + sizes.v), sizes.kv_lora, sizes.storage);
  s.o = maker.linear(sizes.hidden, static_cast<int64_t>(sizes.heads) * sizes.v, sizes.storage);
  return s;
}

GqaSource make_gqa(WeightMaker& maker, const GqaSizes& sizes) {
  GqaSource s;
  s.heads = sizes.heads;
  s.kv_heads = sizes.kv_heads;
  s.head_dim = sizes.head_dim;
  s.norm_eps = kEps;
  s.rope = make_rope(sizes.rope, sizes.interleaved);
  s.q = maker.linear(static_cast<int64_t>(sizes.heads) * sizes.head_dim, sizes.hidden, sizes.storage);
  s.k = maker.linear(static_cast<int64_t>(sizes.kv_heads) * sizes.head_dim, sizes.hidden, sizes.storage);
  s.v = maker.linear(static_cast<int64_t>(sizes.kv_heads) * sizes.head_dim, sizes.hidden, sizes.storage);
  s.o = maker.linear(sizes.hidden, static_cast<int64_t>(sizes.heads) * sizes.head_dim, sizes.storage);
  if (sizes.norms) {
    s.q_norm = maker.gain(sizes.head_dim);
    s.k_norm = maker.gain(sizes.head_dim);
  }
  return s;
}

RowVerb mla_project_verb(const MlaSizes& sizes) {
  auto weights = std::make_shared<MlaWeights>(sizes);
  const int64_t width = sizes.kv_lora + sizes.rope;
  RowVerb verb{.in = sizes.hidden, .out = (sizes.heads + 1) * width, .prepare = {}, .expected = {}};
  verb.prepare = [weights, sizes, width](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(weights->source));
    return [&backend, w, sizes, width](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView q = run.output({sizes.heads, width});
      const TensorView cache = run.cache(width);
      backend.mla_project(q, run.input(0, sizes.hidden), *w, cache);
      return run.finish();
    };
  };
  auto expected = std::make_shared<ExpectedMla>(weights->source);
  verb.expected = [expected](const Row& row) {
    return joined(expected->query(exact(row.x), row.position), expected->cache_row(exact(row.x), row.position));
  };
  return verb;
}

RowVerb mla_output_verb(const MlaSizes& sizes) {
  auto weights = std::make_shared<MlaWeights>(sizes);
  RowVerb verb{
      .in = static_cast<int64_t>(sizes.heads) * sizes.kv_lora, .out = sizes.hidden, .prepare = {}, .expected = {}};
  verb.prepare = [weights, sizes](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(weights->source));
    return [&backend, w, sizes](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView out = run.output(sizes.hidden);
      backend.mla_output(out, run.input(0, {sizes.heads, sizes.kv_lora}), *w);
      return run.finish();
    };
  };
  auto expected = std::make_shared<ExpectedMla>(weights->source);
  verb.expected = [expected](const Row& row) { return expected->output(exact(row.x)); };
  return verb;
}

RowVerb gqa_project_verb(const GqaSizes& sizes) {
  auto weights = std::make_shared<GqaWeights>(sizes);
  const int64_t width = 2 * static_cast<int64_t>(sizes.kv_heads) * sizes.head_dim;
  const int64_t query = static_cast<int64_t>(sizes.heads) * sizes.head_dim;
  RowVerb verb{.in = sizes.hidden, .out = query + width, .prepare = {}, .expected = {}};
  verb.prepare = [weights, sizes, width](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(weights->source));
    return [&backend, w, sizes, width](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView q = run.output({sizes.heads, sizes.head_dim});
      const TensorView cache = run.cache(width);
      backend.gqa_project(q, run.input(0, sizes.hidden), *w, cache);
      return run.finish();
    };
  };
  auto expected = std::make_shared<ExpectedGqa>(weights->source);
  verb.expected = [expected](const Row& row) {
    return joined(expected->query(exact(row.x), row.position), expected->cache_row(exact(row.x), row.position));
  };
  return verb;
}

RowVerb gqa_context_verb(const GqaSizes& sizes) {
  auto weights = std::make_shared<GqaWeights>(sizes);
  const int64_t width = 2 * static_cast<int64_t>(sizes.kv_heads) * sizes.head_dim;
  RowVerb verb{.in = sizes.hidden, .out = width, .prepare = {}, .expected = {}};
  verb.prepare = [weights, sizes, width](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(weights->source));
    return [&backend, w, sizes, width](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView cache = run.cache(width);
      backend.gqa_context(run.input(0, sizes.hidden), *w, cache);
      return run.finish();
    };
  };
  auto expected = std::make_shared<ExpectedGqa>(weights->source);
  verb.expected = [expected](const Row& row) { return expected->cache_row(exact(row.x), row.position); };
  return verb;
}

RowVerb gqa_output_verb(const GqaSizes& sizes) {
  auto weights = std::make_shared<GqaWeights>(sizes);
  RowVerb verb{
      .in = static_cast<int64_t>(sizes.heads) * sizes.head_dim, .out = sizes.hidden, .prepare = {}, .expected = {}};
  verb.prepare = [weights, sizes](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(weights->source));
    return [&backend, w, sizes](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView out = run.output(sizes.hidden);
      backend.gqa_output(out, run.input(0, {sizes.heads, sizes.head_dim}), *w);
      return run.finish();
    };
  };
  auto expected = std::make_shared<ExpectedGqa>(weights->source);
  verb.expected = [expected](const Row& row) { return expected->output(exact(row.x)); };
  return verb;
}

}  // namespace ddtree::ops
