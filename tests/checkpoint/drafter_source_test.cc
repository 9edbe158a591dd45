#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/weights_source.h"
#include "file_writer.h"

namespace ddtree {
namespace {

using testing::FileTensor;
using ::testing::HasSubstr;
using testing::TempDir;

DrafterConfig tiny_config() {
  DrafterConfig c;
  c.hidden_size = 16;
  c.intermediate_size = 24;
  c.num_layers = 2;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 8;
  c.target_layer_ids = {1, 2, 4};
  return c;
}

std::vector<FileTensor> tiny_tensors(const std::string& prefix, const std::string& dtype = "BF16") {
  std::vector<FileTensor> out;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    out.push_back({prefix + name, dtype, std::move(shape), {}});
  };
  add("fc.weight", {16, 48});
  add("hidden_norm.weight", {16});
  add("norm.weight", {16});
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    add(layer + "input_layernorm.weight", {16});
    add(layer + "post_attention_layernorm.weight", {16});
    add(layer + "self_attn.q_proj.weight", {32, 16});
    add(layer + "self_attn.k_proj.weight", {16, 16});
    add(layer + "self_attn.v_proj.weight", {16, 16});
    add(layer + "self_attn.o_proj.weight", {16, 32});
    add(layer + "self_attn.q_norm.weight", {8});
    add(layer + "self_attn.k_norm.weight", {8});
    add(layer + "mlp.gate_proj.weight", {24, 16});
    add(layer + "mlp.up_proj.weight", {24, 16});
    add(layer + "mlp.down_proj.weight", {16, 24});
  }
  return out;
}

// The directory is gone when this returns; a map outlives its file's name.
struct Loaded {
  Checkpoint checkpoint;
  Result<DrafterSource> source;
};

Loaded load(const std::vector<FileTensor>& tensors) {
  const TempDir dir;
  dir.write("model.safetensors", testing::safetensors_file(tensors));
  Result<Checkpoint> opened = Checkpoint::open(dir.path());
  EXPECT_TRUE(opened.ok()) << opened.error().message;
  Checkpoint checkpoint = *std::move(opened);
  Result<DrafterSource> source = load_dflash(checkpoint, tiny_config());
  return {std::move(checkpoint), std::move(source)};
}

TEST(DrafterSource, EveryRoleIsItsTensorUnderEitherPrefix) {
  for (const std::string prefix : {"", "model."}) {
    const Loaded loaded = load(tiny_tensors(prefix));
    ASSERT_TRUE(loaded.source.ok()) << loaded.source.error().message;
    const auto data = [&](const std::string& name) {
      return loaded.checkpoint.view(loaded.checkpoint.tensors()[*loaded.checkpoint.find(prefix + name)]).data;
    };
    const DrafterSource& s = *loaded.source;
    EXPECT_EQ(s.fc.weight.data, data("fc.weight"));
    EXPECT_EQ(s.hidden_norm.data, data("hidden_norm.weight"));
    EXPECT_EQ(s.norm.data, data("norm.weight"));
    ASSERT_EQ(s.layers.size(), 2u);
    const DrafterLayerSource& l = s.layers[1];
    EXPECT_EQ(l.attn_norm.data, data("layers.1.input_layernorm.weight"));
    EXPECT_EQ(l.ffn_norm.data, data("layers.1.post_attention_layernorm.weight"));
    EXPECT_EQ(l.q.weight.data, data("layers.1.self_attn.q_proj.weight"));
    EXPECT_EQ(l.k.weight.data, data("layers.1.self_attn.k_proj.weight"));
    EXPECT_EQ(l.v.weight.data, data("layers.1.self_attn.v_proj.weight"));
    EXPECT_EQ(l.o.weight.data, data("layers.1.self_attn.o_proj.weight"));
    EXPECT_EQ(l.q_norm.data, data("layers.1.self_attn.q_norm.weight"));
    EXPECT_EQ(l.k_norm.data, data("layers.1.self_attn.k_norm.weight"));
    EXPECT_EQ(l.gate.weight.data, data("layers.1.mlp.gate_proj.weight"));
    EXPECT_EQ(l.up.weight.data, data("layers.1.mlp.up_proj.weight"));
    EXPECT_EQ(l.down.weight.data, data("layers.1.mlp.down_proj.weight"));
  }
  EXPECT_TRUE(load(tiny_tensors("", "F32")).source.ok());
}

TEST(DrafterSource, RefusesTensorsOfOtherDrafters) {
  for (const char* name :
       {"candidate_selector.hidden_projection.weight", "layers.0.attention_conv.base_kernel",
        "layers.0.mlp_conv.kernel_projection.weight", "markov_head.w1.weight", "embed_tokens.weight"}) {
    auto tensors = tiny_tensors("");
    tensors.push_back({name, "BF16", {2, 2}, {}});
    const Loaded loaded = load(tensors);
    ASSERT_FALSE(loaded.source.ok()) << name;
    EXPECT_EQ(loaded.source.error().code, Code::kUnsupported);
    EXPECT_THAT(loaded.source.error().message, HasSubstr(name));
  }
}

TEST(DrafterSource, RefusesMissingAndMisshapenTensors) {
  auto tensors = tiny_tensors("");
  tensors[0].shape = {16, 32};
  EXPECT_THAT(load(tensors).source.error().message,
              HasSubstr("fc.weight is BF16 [16, 32], config.json wants the shape [16, 48]"));
  tensors = tiny_tensors("");
  tensors.pop_back();
  EXPECT_EQ(load(tensors).source.error().code, Code::kNotFound);
}

}  // namespace
}  // namespace ddtree
