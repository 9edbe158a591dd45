#include "row_verb.h"

#include <array>
#include <limits>

#include "expected.h"
#include "row_run.h"

namespace ddtree::ops {
namespace {

BoundedVector inputs(const Row& row, int64_t from, int64_t width) {
  return exact({row.x.begin() + from, row.x.begin() + from + width});
}

// What a case's closures share: the weights must outlive every prepare().
template <class Source>
struct Weights {
  WeightMaker maker;
  Source source;
  explicit Weights(uint64_t seed) : maker(seed) {}
};

constexpr float kEps = 1e-6f;

}  // namespace

Row RowVerb::row(int32_t id) const {
  constexpr std::array<int32_t, 16> kPositions = {0,   1,    62,   63,   64,   65,   66,    127,
                                                  128, 2047, 2048, 4095, 4097, 8191, 65537, 262143};
  if (id == kNanRow) return {id, std::vector<float>(in, std::numeric_limits<float>::quiet_NaN()), 0, 0};
  Random random(77, static_cast<uint64_t>(id));
  Row row{id, random.normals(in), static_cast<int32_t>(random.below(vocabulary)), kPositions[id % kPositions.size()]};
  const float factor = id % 16 == 3 ? 0.0f : id % 16 == 5 ? loud : id % 16 == 7 ? 1e-3f : 1.0f;
  for (float& x : row.x) x *= factor;
  return row;
}

RowVerb rms_norm_verb(int64_t width) {
  auto weights = std::make_shared<Weights<TensorView>>(width);
  weights->source = weights->maker.gain(width);
  RowVerb verb{.in = width, .out = width, .prepare = {}, .expected = {}};
  verb.prepare = [weights, width](Backend& backend) -> Runner {
    auto gain = std::make_shared<Buffer>(*backend.prepare_vector(weights->source));
    return [&backend, gain, width](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView out = run.output(width);
      backend.rms_norm(out, run.input(0, width), gain->view(DType::kF32, {width}), kEps);
      return run.finish();
    };
  };
  verb.expected = [weights, width](const Row& row) {
    BoundedVector x = inputs(row, 0, width);
    normalise(x.data(), doubles(weights->source), kEps);
    return x;
  };
  return verb;
}

RowVerb add_rms_norm_verb(int64_t width) {
  auto weights = std::make_shared<Weights<TensorView>>(width);
  weights->source = weights->maker.gain(width, DType::kF32);
  RowVerb verb{.in = 2 * width, .out = 2 * width, .prepare = {}, .expected = {}};
  verb.prepare = [weights, width](Backend& backend) -> Runner {
    auto gain = std::make_shared<Buffer>(*backend.prepare_vector(weights->source));
    return [&backend, gain, width](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView out = run.output(width);
      const TensorView residual = run.updated(0, width);
      backend.add_rms_norm(out, residual, run.input(width, width), gain->view(DType::kF32, {width}), 1e-5f);
      return run.finish();
    };
  };
  verb.expected = [weights, width](const Row& row) {
    BoundedVector sum = inputs(row, 0, width);
    const BoundedVector delta = inputs(row, width, width);
    for (int64_t i = 0; i < width; ++i) sum[i] = sum[i] + delta[i];
    BoundedVector out = sum;
    normalise(out.data(), doubles(weights->source), 1e-5f);
    out.insert(out.end(), sum.begin(), sum.end());
    return out;
  };
  return verb;
}

RowVerb add_verb(int64_t width) {
  RowVerb verb{.in = 2 * width, .out = width, .prepare = {}, .expected = {}};
  verb.prepare = [width](Backend& backend) -> Runner {
    return [&backend, width](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView residual = run.updated(0, width);
      backend.add(residual, run.input(width, width));
      return run.finish();
    };
  };
  verb.expected = [width](const Row& row) {
    BoundedVector sum = inputs(row, 0, width);
    const BoundedVector delta = inputs(row, width, width);
    for (int64_t i = 0; i < width; ++i) sum[i] = sum[i] + delta[i];
    return sum;
  };
  return verb;
}

RowVerb embed_verb(int32_t vocabulary, int64_t width, Storage storage) {
  auto weights = std::make_shared<Weights<Linear>>(vocabulary);
  weights->source = weights->maker.linear(vocabulary, width, storage);
  RowVerb verb{.out = width, .vocabulary = vocabulary, .prepare = {}, .expected = {}};
  verb.prepare = [weights, width](Backend& backend) -> Runner {
    auto table = ready(backend.prepare(std::span<const Linear>(&weights->source, 1)));
    return [&backend, table, width](std::span<const Row> rows) {
      RowRun run(backend, rows);
      backend.embed(run.output(width), *table);
      return run.finish();
    };
  };
  verb.expected = [weights, width](const Row& row) {
    BoundedVector y;
    for (int64_t i = 0; i < width; ++i) y.push_back({weight_value(weights->source, row.token, i), 0});
    return y;
  };
  return verb;
}

RowVerb linear_verb(int64_t in, std::vector<Part> parts) {
  auto weights = std::make_shared<Weights<std::vector<Linear>>>(in + parts[0].out);
  RowVerb verb{.in = in, .prepare = {}, .expected = {}};
  auto whole = std::make_shared<std::vector<Dense>>();
  for (const Part& part : parts) {
    weights->source.push_back(weights->maker.linear(part.out, in, part.storage));
    whole->push_back(dense(weights->source.back()));
    verb.out += part.out;
  }
  verb.prepare = [weights, in, out = verb.out](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(std::span<const Linear>(weights->source)));
    return [&backend, w, in, out](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView y = run.output(out);
      backend.linear(y, run.input(0, in), *w);
      return run.finish();
    };
  };
  verb.expected = [whole, in](const Row& row) {
    const BoundedVector x = inputs(row, 0, in);
    BoundedVector y;
    for (const Dense& part : *whole) {
      const BoundedVector more = multiply(part, x.data());
      y.insert(y.end(), more.begin(), more.end());
    }
    return y;
  };
  return verb;
}

RowVerb mlp_verb(int64_t hidden, int64_t inter, Storage storage) {
  auto weights = std::make_shared<Weights<MlpSource>>(hidden + inter);
  weights->source = weights->maker.mlp(hidden, inter, storage);
  RowVerb verb{.in = hidden, .out = hidden, .prepare = {}, .expected = {}};
  verb.prepare = [weights, hidden](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(weights->source));
    return [&backend, w, hidden](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView out = run.output(hidden);
      backend.mlp(out, run.input(0, hidden), *w);
      return run.finish();
    };
  };
  auto expected = std::make_shared<ExpectedMlp>(weights->source);
  verb.expected = [expected](const Row& row) { return expected->row(exact(row.x)); };
  return verb;
}

MoeSource make_moe(WeightMaker& maker, const MoeSizes& sizes) {
  MoeSource source{sizes.routing, maker.linear(sizes.experts, sizes.hidden, kBF16), {}, {}, {}};
  if (sizes.bias) source.bias = maker.vector(maker.random().normals(sizes.experts, 0.1f));
  for (int32_t e = 0; e < sizes.experts; ++e)
    source.experts.push_back(maker.mlp(sizes.hidden, sizes.inter, sizes.storage));
  if (sizes.shared_inter > 0) source.shared = maker.mlp(sizes.hidden, sizes.shared_inter, kBF16);
  return source;
}

RowVerb moe_verb(const MoeSizes& sizes) {
  auto weights = std::make_shared<Weights<MoeSource>>(sizes.seed);
  weights->source = make_moe(weights->maker, sizes);
  const int64_t hidden = sizes.hidden;
  RowVerb verb{.in = hidden, .out = hidden, .loud = 1, .prepare = {}, .expected = {}};
  verb.prepare = [weights, hidden](Backend& backend) -> Runner {
    auto w = ready(backend.prepare(weights->source));
    return [&backend, w, hidden](std::span<const Row> rows) {
      RowRun run(backend, rows);
      const TensorView out = run.output(hidden);
      backend.moe(out, run.input(0, hidden), *w);
      return run.finish();
    };
  };
  auto expected = std::make_shared<ExpectedMoe>(weights->source);
  verb.expected = [expected](const Row& row) { return expected->row(exact(row.x)); };
  return verb;
}

}  // namespace ddtree::ops
