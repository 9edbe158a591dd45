// RowVerb: a verb with weights, seen as what it computes for one row. The tests run it on every backend against the
// definition, and compare a row's bits across batches.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "bounded.h"
#include "weight_maker.h"

namespace ddtree::ops {

struct Row {
  int32_t id = 0;
  std::vector<float> x;
  int32_t token = 0;
  int32_t position = 0;
};

// Runs the verb on rows of one batch and returns [rows, out]; checks guards, poison and that inputs stay as they were.
using Runner = std::function<std::vector<float>(std::span<const Row>)>;

struct RowVerb {
  int64_t in = 0;   // inputs of a row, in the order that the verb takes them
  int64_t out = 0;  // outputs of a row, likewise; a cache row comes after the query
  int32_t rows = 257;
  int32_t vocabulary = 1;
  float loud = 32;  // some rows are this much larger than the others

  std::function<Runner(Backend&)> prepare;
  std::function<BoundedVector(const Row&)> expected;
  std::function<void(std::span<const float>)> check = {};  // what must hold within one row's outputs

  Row row(int32_t id) const;  // the same row for the same id; kNanRow has only NaN
};
inline constexpr int32_t kNanRow = -1;

struct MlaSizes {
  int64_t hidden;
  int32_t heads, q_lora, kv_lora, nope, rope, v;  // q_lora 0: none
  bool interleaved = true;
  float amplitude = 1;
  Storage storage = kBF16;
};
struct GqaSizes {
  int64_t hidden;
  int32_t heads, kv_heads, head_dim, rope;
  bool interleaved = false;
  bool norms = true;
  Storage storage = kBF16;
};
struct MoeSizes {
  int64_t hidden, inter, shared_inter;  // shared_inter 0: none
  int32_t experts;
  MoeRouting routing;
  bool bias = true;
  Storage storage = kInt4;
  uint64_t seed = 1;
};
struct Part {
  int64_t out;
  Storage storage;
};

RowVerb rms_norm_verb(int64_t width);
RowVerb add_rms_norm_verb(int64_t width);
RowVerb add_verb(int64_t width);
RowVerb embed_verb(int32_t vocabulary, int64_t width, Storage storage);
RowVerb linear_verb(int64_t in, std::vector<Part> parts);
RowVerb mlp_verb(int64_t hidden, int64_t inter, Storage storage);
RowVerb moe_verb(const MoeSizes& sizes);
RowVerb head_verb(int32_t vocabulary, int64_t hidden, int64_t k, Storage storage);
RowVerb mla_project_verb(const MlaSizes& sizes);
RowVerb mla_output_verb(const MlaSizes& sizes);
RowVerb gqa_project_verb(const GqaSizes& sizes);
RowVerb gqa_context_verb(const GqaSizes& sizes);
RowVerb gqa_output_verb(const GqaSizes& sizes);

// Sources with random weights.
MlaSource make_mla(WeightMaker& maker, const MlaSizes& sizes);
GqaSource make_gqa(WeightMaker& maker, const GqaSizes& sizes);
MoeSource make_moe(WeightMaker& maker, const MoeSizes& sizes);

}  // namespace ddtree::ops
