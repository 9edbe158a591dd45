// prepare() refuses sources that contradict themselves, with an error that names the part; it never aborts.
#include <gtest/gtest.h>

#include <functional>

#include "machines.h"
#include "row_verb.h"

namespace ddtree::ops {
namespace {

template <class Source>
auto prepare(Backend& backend, const Source& source) {
  return backend.prepare(source);
}
auto prepare(Backend& backend, const std::vector<Linear>& parts) {
  return backend.prepare(std::span<const Linear>(parts));
}

// One thing to break in a good source, and what the message must then contain.
template <class Source>
struct Break {
  std::string word;
  std::function<void(Source&)> apply;
};

template <class Source>
void expect_refused(const Source& good, const std::vector<Break<Source>>& breaks) {
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    EXPECT_TRUE(prepare(*backend, good).ok()) << machine.name;
    for (const Break<Source>& b : breaks) {
      Source bad = good;
      b.apply(bad);
      const auto prepared = prepare(*backend, bad);
      ASSERT_FALSE(prepared.ok()) << machine.name << ", break of " << b.word;
      EXPECT_EQ(prepared.error().code, Code::kInvalidArgument) << machine.name;
      EXPECT_NE(prepared.error().message.find(b.word), std::string::npos) << prepared.error().message;
    }
  }
}

TEST(Prepare, RefusesBadLinears) {
  using Parts = std::vector<Linear>;
  WeightMaker maker(1);
  const Linear narrow = maker.linear(4, 32, kBF16);
  const Linear packed_narrow = maker.linear(8, 32, kInt4);
  expect_refused<Parts>({maker.linear(16, 64, kBF16), maker.linear(8, 64, kInt4), maker.linear(4, 64, kF32)},
                        {{"no parts", [](Parts& p) { p.clear(); }},
                         {"missing", [](Parts& p) { p[0].weight = {}; }},
                         {"[4, 32]", [&](Parts& p) { p[2] = narrow; }},
                         {"[17, 64]", [](Parts& p) { p[0].out = 17; }},
                         {"no elements", [](Parts& p) { p[0].out = 0; }},
                         {"no elements", [](Parts& p) { p[0].in = -64; }},
                         {"I32", [](Parts& p) { p[0].weight.dtype = DType::kI32; }},
                         {"scale", [](Parts& p) { p[0].scale = p[1].scale; }},
                         {"groups of 24", [](Parts& p) { p[1].group_size = 24; }},
                         {"groups of -32", [](Parts& p) { p[1].group_size = -32; }},
                         {"I32 [8, 8]", [&](Parts& p) { p[1].weight = packed_narrow.weight; }},
                         {"I32 [8, 8]", [](Parts& p) { p[1].weight.dtype = DType::kF32; }},
                         {"scale is missing", [](Parts& p) { p[1].scale = {}; }},
                         {"scale", [&](Parts& p) { p[1].scale = packed_narrow.scale; }},
                         {"scale", [](Parts& p) { p[1].scale.dtype = DType::kI16; }}});
}

TEST(Prepare, RefusesBadMla) {
  WeightMaker maker(2);
  expect_refused<MlaSource>(make_mla(maker, {64, 2, 32, 48, 16, 8, 24}),
                            {{"heads", [](MlaSource& s) { s.heads = 0; }},
                             {"kv_lora", [](MlaSource& s) { s.kv_lora = -1; }},
                             {"v_head_dim", [](MlaSource& s) { s.v = 1 << 30; }},
                             {"kv_b", [](MlaSource& s) { s.heads = 4; }},
                             {"q_b", [](MlaSource& s) { s.q_b = s.q_a; }},
                             {"q_a", [](MlaSource& s) { s.q_a = s.o; }},
                             {"q_a norm", [](MlaSource& s) { s.q_a_norm = {}; }},
                             {"q_a norm", [](MlaSource& s) { s.q_a = {}; }},
                             {"kv_a", [](MlaSource& s) { s.kv_a = {}; }},
                             {"kv_a norm", [](MlaSource& s) { s.kv_a_norm = s.q_a_norm; }},
                             {"kv_b", [](MlaSource& s) { s.nope = 17; }},
                             {"attention o", [](MlaSource& s) { s.o = s.q_a; }},
                             {"rope", [](MlaSource& s) { s.rope.dim = 6; }},
                             {"frequencies", [](MlaSource& s) { s.rope.inv_freq.pop_back(); }}});
}

TEST(Prepare, RefusesBadGqa) {
  WeightMaker maker(3);
  expect_refused<GqaSource>(make_gqa(maker, {64, 4, 2, 16, 16}),
                            {{"head_dim", [](GqaSource& s) { s.head_dim = 0; }},
                             {"3 key-value heads", [](GqaSource& s) { s.kv_heads = 3; }},
                             {"attention q", [](GqaSource& s) { s.q = s.k; }},
                             {"attention k", [](GqaSource& s) { s.k = s.q; }},
                             {"attention v", [](GqaSource& s) { s.v = s.o; }},
                             {"attention o", [](GqaSource& s) { s.o = s.k; }},
                             {"q norm", [](GqaSource& s) { s.q_norm.dim[0] = 15; }},
                             {"k norm", [](GqaSource& s) { s.k_norm.dtype = DType::kI32; }},
                             {"rope", [](GqaSource& s) { s.rope.dim = 15; }},
                             {"rope", [](GqaSource& s) { s.rope.dim = 18; }},
                             {"frequencies", [](GqaSource& s) { s.rope.inv_freq.push_back(1); }}});
}

TEST(Prepare, RefusesBadMlp) {
  WeightMaker maker(4);
  const Linear other = maker.linear(16, 64);
  expect_refused<MlpSource>(maker.mlp(64, 32), {{"mlp gate", [](MlpSource& s) { s.gate = {}; }},
                                                {"mlp up", [&](MlpSource& s) { s.up = other; }},
                                                {"mlp down", [](MlpSource& s) { s.down = s.up; }}});
}

TEST(Prepare, RefusesBadMoe) {
  WeightMaker maker(5);
  const MlpSource wider = maker.mlp(64, 64);
  const MoeRouting routing = {MoeRouting::Score::kSigmoid, 2, 2, 1, true, true, 1};
  expect_refused<MoeSource>(make_moe(maker, {64, 32, 32, 8, routing}),
                            {{"experts: none", [](MoeSource& s) { s.experts.clear(); }},
                             {"router", [](MoeSource& s) { s.experts.pop_back(); }},
                             {"expert 3", [&](MoeSource& s) { s.experts[3] = wider; }},
                             {"expert 7 down", [](MoeSource& s) { s.experts[7].down = {}; }},
                             {"router bias", [](MoeSource& s) { s.bias.dim[0] = 7; }},
                             {"shared expert", [](MoeSource& s) { s.shared.up = {}; }},
                             {"shared expert", [](MoeSource& s) { s.shared.gate = {}; }},
                             {"experts per token", [](MoeSource& s) { s.routing.top_k = 0; }},
                             {"experts per token", [](MoeSource& s) { s.routing.top_k = 5; }},
                             {"3 groups", [](MoeSource& s) { s.routing.groups = 3; }},
                             {"expert groups", [](MoeSource& s) { s.routing.groups = 0; }},
                             {"groups per token", [](MoeSource& s) { s.routing.top_groups = 3; }}});
}

TEST(Prepare, RefusesBadVectors) {
  WeightMaker maker(6);
  TensorView good = maker.gain(8);
  TensorView matrix = good;
  matrix.rank = 2;
  matrix.dim = {2, 4, 0, 0};
  TensorView integers = good;
  integers.dtype = DType::kI16;
  for (const Machine& machine : machines()) {
    const std::unique_ptr<Backend> backend = make(machine);
    EXPECT_TRUE(backend->prepare_vector(good).ok()) << machine.name;
    for (const TensorView& bad : {TensorView(), matrix, integers})
      EXPECT_FALSE(backend->prepare_vector(bad).ok()) << machine.name << ", " << describe(bad);
  }
}

}  // namespace
}  // namespace ddtree::ops
