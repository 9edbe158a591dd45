#include "checkpoint/weights_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model_tensors.h"

namespace ddtree {
namespace {

using testing::FileTensor;
using ::testing::HasSubstr;
using testing::model_tensors;
using testing::ModelShape;
using testing::TempDir;

// A model directory on disk, opened.
struct Opened {
  TempDir dir;
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;

  Opened(const ModelShape& shape, const std::vector<FileTensor>& tensors) {
    testing::write_model(dir, shape, tensors);
    Result<ModelConfig> parsed = load_model_config(dir.path());
    Result<Checkpoint> opened = Checkpoint::open(dir.path());
    EXPECT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    config = *std::move(parsed);
    checkpoint = std::make_unique<Checkpoint>(*std::move(opened));
  }
  explicit Opened(const ModelShape& shape) : Opened(shape, model_tensors(shape)) {}

  const void* data(const std::string& name) const {
    const std::optional<size_t> index = checkpoint->find(name);
    EXPECT_TRUE(index.has_value()) << name;
    return index ? checkpoint->view(checkpoint->tensors()[*index]).data : nullptr;
  }
};

DeepseekSource loaded(const Opened& model) {
  Result<DeepseekSource> source = load_deepseek(*model.checkpoint, model.config);
  EXPECT_TRUE(source.ok()) << source.error().message;
  return source.ok() ? *std::move(source) : DeepseekSource{};
}

void expect_error(const ModelShape& shape, const std::vector<FileTensor>& tensors, Code code,
                  const std::vector<std::string>& parts) {
  const Opened model(shape, tensors);
  const Result<DeepseekSource> source = load_deepseek(*model.checkpoint, model.config);
  ASSERT_FALSE(source.ok()) << parts[0];
  EXPECT_EQ(source.error().code, code) << source.error().message;
  EXPECT_THAT(source.error().message, HasSubstr(model.dir.path()));
  for (const std::string& part : parts) EXPECT_THAT(source.error().message, HasSubstr(part));
}

FileTensor& tensor(std::vector<FileTensor>& tensors, const std::string& name) {
  for (FileTensor& t : tensors)
    if (t.name == name) return t;
  ADD_FAILURE() << name;
  return tensors[0];
}

std::vector<FileTensor> without(std::vector<FileTensor> tensors, const std::string& name) {
  std::erase_if(tensors, [&](const FileTensor& t) { return t.name == name; });
  return tensors;
}

template <class T>
std::string repeated(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

TEST(WeightsSource, EveryRoleIsItsTensor) {
  const Opened model(ModelShape{});
  const DeepseekSource source = loaded(model);
  EXPECT_EQ(source.embed.weight.data, model.data("model.embed_tokens.weight"));
  EXPECT_EQ(source.head.weight.data, model.data("lm_head.weight"));
  EXPECT_EQ(source.norm.data, model.data("model.norm.weight"));
  ASSERT_EQ(source.layers.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    const LayerSource& l = source.layers[static_cast<size_t>(i)];
    const std::string at = "model.layers." + std::to_string(i) + ".";
    EXPECT_EQ(l.attn_norm.data, model.data(at + "input_layernorm.weight"));
    EXPECT_EQ(l.ffn_norm.data, model.data(at + "post_attention_layernorm.weight"));
    EXPECT_EQ(l.q_a.weight.data, model.data(at + "self_attn.q_a_proj.weight"));
    EXPECT_EQ(l.q_a_norm.data, model.data(at + "self_attn.q_a_layernorm.weight"));
    EXPECT_EQ(l.q_b.weight.data, model.data(at + "self_attn.q_b_proj.weight"));
    EXPECT_EQ(l.kv_a.weight.data, model.data(at + "self_attn.kv_a_proj_with_mqa.weight"));
    EXPECT_EQ(l.kv_a_norm.data, model.data(at + "self_attn.kv_a_layernorm.weight"));
    EXPECT_EQ(l.kv_b.weight.data, model.data(at + "self_attn.kv_b_proj.weight"));
    EXPECT_EQ(l.o.weight.data, model.data(at + "self_attn.o_proj.weight"));
  }
  const LayerSource& dense = source.layers[0];
  EXPECT_EQ(dense.gate.weight.data, model.data("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_EQ(dense.up.weight.data, model.data("model.layers.0.mlp.up_proj.weight"));
  EXPECT_EQ(dense.down.weight.data, model.data("model.layers.0.mlp.down_proj.weight"));
  EXPECT_TRUE(dense.router.empty() && dense.expert_gate.empty() && dense.shared_gate.empty());
}

TEST(WeightsSource, ExpertsAreInt4Triples) {
  const Opened model(ModelShape{});
  const DeepseekSource source = loaded(model);
  for (int i = 1; i < 3; ++i) {
    const LayerSource& l = source.layers[static_cast<size_t>(i)];
    const std::string mlp = "model.layers." + std::to_string(i) + ".mlp.";
    EXPECT_TRUE(l.gate.empty());
    EXPECT_EQ(l.router.weight.data, model.data(mlp + "gate.weight"));
    EXPECT_EQ(l.router_bias.data, model.data(mlp + "gate.e_score_correction_bias"));
    EXPECT_EQ(l.shared_gate.weight.data, model.data(mlp + "shared_experts.gate_proj.weight"));
    EXPECT_EQ(l.shared_up.weight.data, model.data(mlp + "shared_experts.up_proj.weight"));
    EXPECT_EQ(l.shared_down.weight.data, model.data(mlp + "shared_experts.down_proj.weight"));
    ASSERT_EQ(l.expert_gate.size(), 4u);
    for (size_t e = 0; e < 4; ++e) {
      const std::string expert = mlp + "experts." + std::to_string(e) + ".";
      const std::pair<const Linear*, const char*> parts[] = {
          {&l.expert_gate[e], "gate_proj"}, {&l.expert_up[e], "up_proj"}, {&l.expert_down[e], "down_proj"}};
      for (const auto& [linear, name] : parts) {
        EXPECT_EQ(linear->weight.data, model.data(expert + name + ".weight_packed"));
        EXPECT_EQ(linear->scale.data, model.data(expert + name + ".weight_scale"));
        EXPECT_EQ(linear->group_size, 32);
      }
    }
    EXPECT_EQ(describe(l.expert_gate[0].weight), "I32 [64, 8]");
    EXPECT_EQ(describe(l.expert_gate[0].scale), "BF16 [64, 2]");
    EXPECT_EQ(l.expert_down[3].out, 64);
    EXPECT_EQ(l.expert_down[3].in, 64);
  }
}

TEST(WeightsSource, OtherLayouts) {
  ModelShape direct;
  direct.q_lora = 0;
  const Opened q(direct);
  EXPECT_TRUE(loaded(q).layers[0].q_a.empty());
  EXPECT_EQ(loaded(q).layers[0].q_b.weight.data, q.data("model.layers.0.self_attn.q_proj.weight"));

  ModelShape plain;
  plain.group = 0;
  plain.router_bias = false;
  plain.shared = 2;
  const Opened p(plain);
  EXPECT_TRUE(loaded(p).layers[1].router_bias.empty());
  EXPECT_EQ(describe(loaded(p).layers[1].shared_up.weight), "BF16 [128, 64]");
  EXPECT_EQ(loaded(p).layers[1].expert_up[2].weight.data, p.data("model.layers.1.mlp.experts.2.up_proj.weight"));

  ModelShape dense;
  dense.experts = 0;
  EXPECT_FALSE(loaded(Opened(dense)).layers[2].down.empty());

  ModelShape long_shapes;
  long_shapes.shape_dtype = "I64";
  loaded(Opened(long_shapes));
  const auto no_shape = without(model_tensors({}), "model.layers.1.mlp.experts.0.up_proj.weight_shape");
  loaded(Opened(ModelShape{}, no_shape));
}

TEST(WeightsSource, FusedExpertsAreTakenApart) {
  ModelShape shape;
  shape.group = 0;
  shape.fused_experts = true;
  const Opened model(shape);
  const LayerSource l = loaded(model).layers[1];
  const char* gate_up = static_cast<const char*>(model.data("model.layers.1.mlp.experts.gate_up_proj"));
  const char* down = static_cast<const char*>(model.data("model.layers.1.mlp.experts.down_proj"));
  const int64_t matrix = 64 * 64 * 2;  // bytes of one [64, 64]
  for (int64_t e = 0; e < 4; ++e) {
    EXPECT_EQ(l.expert_gate[static_cast<size_t>(e)].weight.data, gate_up + e * 2 * matrix);
    EXPECT_EQ(l.expert_up[static_cast<size_t>(e)].weight.data, gate_up + (e * 2 + 1) * matrix);
    EXPECT_EQ(l.expert_down[static_cast<size_t>(e)].weight.data, down + e * matrix);
  }
  EXPECT_EQ(describe(l.expert_up[3].weight), "BF16 [64, 64]");
  EXPECT_EQ(l.expert_up[3].weight.row_stride, 64);
}

TEST(WeightsSource, TiedHeads) {
  ModelShape tied;
  tied.tied = true;
  const DeepseekSource source = loaded(Opened(tied));
  EXPECT_EQ(source.head.weight.data, source.embed.weight.data);
  auto tensors = model_tensors(tied);
  tensors.push_back({"lm_head.weight", "BF16", {64, 64}, {}});
  loaded(Opened(tied, tensors));
  expect_error(ModelShape{}, without(model_tensors({}), "lm_head.weight"), Code::kNotFound,
               {"lm_head.weight is missing"});
}

TEST(WeightsSource, WrappedModelsSkipVisionTensors) {
  ModelShape shape;
  shape.prefix = "language_model.";
  auto tensors = model_tensors(shape);
  tensors.push_back({"vision_tower.encoder.blocks.0.wqkv.weight", "BF16", {4, 4}, {}});
  tensors.push_back({"mm_projector.proj.0.bias", "BF16", {1, 1, 1, 1, 4}, {}});
  const Opened model(shape, tensors);
  EXPECT_EQ(loaded(model).norm.data, model.data("language_model.model.norm.weight"));
}

TEST(WeightsSource, PredictionLayersAreSkippedWhereDeclared) {
  ModelShape shape;
  auto tensors = model_tensors(shape);
  tensors.push_back({"model.layers.3.eh_proj.weight", "F8_E4M3", {4, 4}, {}});
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}, {}});
  expect_error(shape, tensors, Code::kUnsupported, {"1 tensors", "model.layers.3.eh_proj.weight"});
  shape.mtp = 1;
  loaded(Opened(shape, tensors));
  tensors.push_back({"model.layers.4.eh_proj.weight", "BF16", {4, 4}, {}});
  expect_error(shape, tensors, Code::kUnsupported, {"model.layers.4.eh_proj.weight"});
}

TEST(WeightsSource, UnknownTensorsAreListed) {
  auto tensors = model_tensors({});
  for (int i = 0; i < 7; ++i) tensors.push_back({"extra." + std::to_string(i), "BF16", {1}, {}});
  tensors.push_back({"model.layers.1.mlp.experts.0.up_proj.weight_g_idx", "I32", {64}, {}});
  expect_error(ModelShape{}, tensors, Code::kUnsupported,
               {"8 tensors that this architecture does not have: extra.0, extra.1, extra.2, extra.3, extra.4, …"});
}

TEST(WeightsSource, MissingTensorsAreNamed) {
  for (const char* name :
       {"model.embed_tokens.weight", "model.norm.weight", "model.layers.2.input_layernorm.weight",
        "model.layers.0.self_attn.q_a_layernorm.weight", "model.layers.1.self_attn.kv_b_proj.weight",
        "model.layers.0.mlp.down_proj.weight", "model.layers.2.mlp.gate.weight",
        "model.layers.2.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.experts.3.gate_proj.weight_scale",
        "model.layers.1.mlp.shared_experts.up_proj.weight"})
    expect_error(ModelShape{}, without(model_tensors({}), name), Code::kNotFound, {std::string(name) + " is missing"});
  expect_error(ModelShape{}, without(model_tensors({}), "model.layers.1.mlp.experts.3.gate_proj.weight_packed"),
               Code::kNotFound, {"model.layers.1.mlp.experts.3.gate_proj.weight is missing"});
}

void expect_changed_error(const std::string& name, const std::string& dtype, std::vector<int64_t> dims, Code code,
                          const std::string& part) {
  auto tensors = model_tensors({});
  FileTensor& t = tensor(tensors, name);
  t.dtype = dtype;
  t.shape = std::move(dims);
  t.data.clear();
  expect_error(ModelShape{}, tensors, code, {"model.safetensors: tensor " + name, part});
}

TEST(WeightsSource, WrongShapesAndTypesAreNamed) {
  const std::string expert = "model.layers.1.mlp.experts.0.down_proj.";
  const auto bad = Code::kInvalidArgument;
  expect_changed_error("model.norm.weight", "BF16", {65}, bad, "is BF16 [65], config.json wants the shape [64]");
  expect_changed_error("model.norm.weight", "BF16", {64, 1}, bad, "wants the shape [64]");
  expect_changed_error("lm_head.weight", "BF16", {64, 32}, bad, "wants the shape [64, 64]");
  expect_changed_error("model.layers.0.self_attn.o_proj.weight", "BF16", {32, 64}, bad, "wants the shape");
  expect_changed_error("model.layers.0.self_attn.o_proj.weight", "I32", {64, 64}, bad, "must be BF16, F16 or F32");
  expect_changed_error("model.layers.0.self_attn.o_proj.weight", "F8_E4M3", {64, 64}, Code::kUnsupported,
                       "FP8 checkpoints are not supported");
  expect_changed_error(expert + "weight_packed", "I64", {64, 8}, bad, "must be I32");
  expect_changed_error(expert + "weight_packed", "I32", {64, 16}, bad, "wants the shape [64, 8]");
  expect_changed_error(expert + "weight_scale", "BF16", {64, 4}, bad, "wants the shape [64, 2]");
  expect_changed_error(expert + "weight_scale", "BF16", {64, 1}, bad, "wants the shape [64, 2]");
  expect_changed_error(expert + "weight_scale", "I32", {64, 2}, bad, "must be BF16, F16 or F32");
  expect_changed_error(expert + "weight_shape", "F32", {2}, bad, "must be I32 or I64");
  expect_changed_error(expert + "weight_shape", "I32", {3}, bad, "wants the shape [2]");
}

TEST(WeightsSource, TheGroupSizeComesFromTheConfiguration) {
  ModelShape declared;
  declared.group = 16;
  expect_error(declared, model_tensors({}), Code::kInvalidArgument, {"weight_scale", "is BF16 [64, 2]", "[64, 4]"});
  declared.group = 48;
  expect_error(declared, model_tensors({}), Code::kInvalidArgument,
               {"64 input features are no multiple of group_size 48"});
  declared.group = 0;
  expect_error(declared, model_tensors({}), Code::kInvalidArgument, {"weight_packed", "no quantization_config"});
}

TEST(WeightsSource, WeightShapesMustAgree) {
  const std::string name = "model.layers.2.mlp.experts.1.up_proj.weight_shape";
  const auto with_shape = [&](const std::string& dtype, const std::string& data) {
    auto tensors = model_tensors({});
    tensor(tensors, name).dtype = dtype;
    tensor(tensors, name).data = data;
    return tensors;
  };
  loaded(Opened(ModelShape{}, with_shape("I64", repeated<int64_t>({64, 64}))));
  for (const std::vector<int32_t>& shape :
       std::vector<std::vector<int32_t>>{{64, 65}, {64, 8}, {-64, 64}, {64, -64}, {0, 0}})
    expect_error(ModelShape{}, with_shape("I32", repeated(shape)), Code::kCorrupt, {name + " holds [", "I32 [64, 8]"});
  expect_error(ModelShape{}, with_shape("I64", repeated<int64_t>({64, int64_t{1} << 62})), Code::kCorrupt, {name});
}

TEST(WeightsSource, ValuesThatPoisonAreFound) {
  const std::string scale = "model.layers.2.mlp.experts.3.down_proj.weight_scale";
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();
  const auto changed = [&](const std::string& name, const std::string& dtype, const std::string& data) {
    auto tensors = model_tensors({});
    tensor(tensors, name).dtype = dtype;
    tensor(tensors, name).data = data;
    return tensors;
  };
  std::vector<uint16_t> halves(128, 0x3c00);
  for (const auto& [dtype, bits] : std::vector<std::pair<std::string, uint16_t>>{
           {"BF16", 0x7fc0}, {"BF16", 0xff80}, {"BF16", 0x7f81}, {"F16", 0x7e00}, {"F16", 0xfc00}}) {
    for (const size_t at : {size_t{0}, size_t{77}, size_t{127}}) {
      std::vector<uint16_t> values = halves;
      values[at] = bits;
      expect_error(ModelShape{}, changed(scale, dtype, repeated(values)), Code::kCorrupt,
                   {scale + " holds NaN or infinity at element " + std::to_string(at)});
    }
  }
  std::vector<uint16_t> largest(128, 0x7f7f);
  loaded(Opened(ModelShape{}, changed(scale, "BF16", repeated(largest))));
  loaded(Opened(ModelShape{}, changed(scale, "F16", repeated(std::vector<uint16_t>(128, 0x7bff)))));
  std::vector<float> singles(128, 1);
  singles[127] = nan;
  expect_error(ModelShape{}, changed(scale, "F32", repeated(singles)), Code::kCorrupt, {"at element 127"});
  const std::string bias = "model.layers.1.mlp.gate.e_score_correction_bias";
  expect_error(ModelShape{}, changed(bias, "F32", repeated<float>({0, 0, -infinity, 0})), Code::kCorrupt,
               {bias + " holds NaN or infinity at element 2"});
  std::vector<float> gain(64, 1);
  gain[63] = nan;
  expect_error(ModelShape{}, changed("model.norm.weight", "F32", repeated(gain)), Code::kCorrupt,
               {"model.norm.weight holds NaN or infinity at element 63"});
}

TEST(WeightsSource, DemoPairLoads) {
  const std::string demo = DDTREE_SOURCE_DIR "/models/demo";
  const Checkpoint target = *Checkpoint::open(demo + "/target");
  const Result<DeepseekSource> source = load_deepseek(target, *load_model_config(demo + "/target"));
  ASSERT_TRUE(source.ok()) << source.error().message;
  EXPECT_EQ(describe(source->layers[5].expert_down[31].weight), "I32 [256, 16]");
  const Checkpoint drafter = *Checkpoint::open(demo + "/drafter");
  const Result<DrafterSource> draft = load_dflash(drafter, *load_drafter_config(demo + "/drafter"));
  ASSERT_TRUE(draft.ok()) << draft.error().message;
  EXPECT_EQ(describe(draft->fc.weight), "BF16 [256, 1024]");
  EXPECT_EQ(describe(draft->layers[1].k.weight), "BF16 [128, 256]");
  EXPECT_EQ(describe(draft->layers[1].k_norm), "BF16 [64]");
}

}  // namespace
}  // namespace ddtree
