#include <iterator>

#include <fmt/format.h>

#include "base/json_writer.h"
#include "checkpoint/inspect.h"

namespace ddtree {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string readable(int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

const char* scoring_name(Scoring scoring) { return scoring == Scoring::kSigmoid ? "sigmoid" : "softmax"; }

const char* topk_method_name(TopkMethod method) {
  switch (method) {
    case TopkMethod::kGreedy: return "greedy";
    case TopkMethod::kGroupLimitedGreedy: return "group_limited_greedy";
    case TopkMethod::kNoauxTc: return "noaux_tc";
  }
  return "";
}

std::string rope_text(const RopeConfig& rope) {
  if (rope.type == RopeType::kPlain) return fmt::format("theta {}", rope.theta);
  return fmt::format("theta {}, YaRN factor {} over {} positions, beta {} / {}, mscale {} / {}", rope.theta,
                     rope.factor, rope.original_max_position, rope.beta_fast, rope.beta_slow, rope.mscale,
                     rope.mscale_all_dim);
}

void print_config(Out out, const ModelConfig& c) {
  fmt::format_to(out, "  architecture      {} ({})\n", c.architecture, c.model_type);
  fmt::format_to(out, "  size              {} layers ({} dense), hidden {}, vocabulary {}, {} positions\n",
                 c.num_layers, c.num_dense_layers(), c.hidden_size, c.vocab_size, c.max_position);
  fmt::format_to(out, "  attention         MLA, {} heads, q_lora {}, kv_lora {}, head dims {}+{} / {}\n", c.num_heads,
                 c.q_lora_rank ? std::to_string(c.q_lora_rank) : "none", c.kv_lora_rank, c.qk_nope_head_dim,
                 c.qk_rope_head_dim, c.v_head_dim);
  fmt::format_to(out, "  rotation          {}\n", rope_text(c.rope));
  fmt::format_to(out, "  softmax scale     {:.8g}, norm eps {:g} (MLA latents {:g})\n", c.softmax_scale, c.rms_norm_eps,
                 c.mla_lora_norm_eps);
  if (c.num_experts > 0)
    fmt::format_to(out, "  experts           {} routed of width {}, {} a token, {} shared; {} / {}, {} of {} groups\n",
                   c.num_experts, c.moe_intermediate_size, c.num_experts_per_token, c.num_shared_experts,
                   scoring_name(c.scoring), topk_method_name(c.topk_method), c.topk_groups, c.num_groups);
  fmt::format_to(out, "  quantisation      {}\n",
                 c.int4_group_size ? fmt::format("INT4, groups of {}", c.int4_group_size) : std::string("none"));
  fmt::format_to(out, "  stop ids          {}\n", fmt::join(c.eos_ids, ", "));
}

void print_target(Out out, const TargetReport& r) {
  fmt::format_to(out, "{}\n", r.dir);
  print_config(out, r.config);
  fmt::format_to(out, "  files             {} shards, {} tensors, {} bytes ({})\n", r.shards, r.all.tensors,
                 r.all.bytes, readable(r.all.bytes));
  if (r.declared_bytes && *r.declared_bytes != r.all.bytes)
    fmt::format_to(out, "  note              the index declares {} bytes in all\n", *r.declared_bytes);
  fmt::format_to(out, "\n  {:<17} {:>18} {:>20}\n", "weights (bytes)", "whole model",
                 fmt::format("per rank, tp {}", r.plan.tp));
  for (int g = 0; g < kWeightGroups; ++g) {
    const WeightGroup group = static_cast<WeightGroup>(g);
    fmt::format_to(out, "  {:<17} {:>18} {:>20}\n", weight_group_name(group), r.weights[group], r.plan.weights[group]);
  }
  fmt::format_to(out, "  {:<17} {:>18} {:>20}   ({})\n", "total", r.weights.total(), r.plan.weights.total(),
                 readable(r.plan.weights.total()));
  if (r.shapes.tensors)
    fmt::format_to(out, "  {:<17} {:>18} {:>20}   ({} tensors)\n", "weight_shape", r.shapes.bytes, 0, r.shapes.tensors);
  if (r.skipped.tensors)
    fmt::format_to(out, "  {:<17} {:>18} {:>20}   ({} tensors)\n", "skipped", r.skipped.bytes, 0, r.skipped.tensors);
  fmt::format_to(out, "\n  cache             {} bytes per token and rank (BF16); {} for {} positions\n",
                 r.plan.kv_bytes_per_token, readable(r.plan.kv_bytes_per_token * r.config.max_position),
                 r.config.max_position);
}

void print_drafter(Out out, const DrafterReport& r) {
  const DrafterConfig& c = r.config;
  fmt::format_to(out, "{}\n", r.dir);
  fmt::format_to(out, "  architecture      DFlashDraftModel, block {}, mask id {}\n", c.block_size, c.mask_token_id);
  fmt::format_to(out, "  size              {} layers, hidden {}, {} heads / {} kv of {}, {} positions\n", c.num_layers,
                 c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.max_position);
  fmt::format_to(out, "  target layers     {}\n", fmt::join(c.target_layer_ids, ", "));
  fmt::format_to(out, "  rotation          {}\n", rope_text(c.rope));
  fmt::format_to(out, "  weights           {} bytes ({}), whole on every rank\n", r.weight_bytes,
                 readable(r.weight_bytes));
  fmt::format_to(out, "  cache             {} bytes per token (BF16)\n", r.kv_bytes_per_token);
}

void write_count(JsonWriter& out, std::string_view name, const TensorCount& count) {
  out.key(name).begin_object().member("tensors", count.tensors).member("bytes", count.bytes).end_object();
}

void write_weights(JsonWriter& out, std::string_view name, const WeightBytes& weights) {
  out.key(name).begin_object();
  for (int g = 0; g < kWeightGroups; ++g)
    out.member(weight_group_name(static_cast<WeightGroup>(g)), weights[static_cast<WeightGroup>(g)]);
  out.member("total", weights.total()).end_object();
}

void write_rope(JsonWriter& out, const RopeConfig& rope, double amplitude) {
  out.key("rope").begin_object();
  out.member("type", rope.type == RopeType::kYarn ? "yarn" : "default").member("theta", rope.theta);
  if (rope.type == RopeType::kYarn)
    out.member("factor", rope.factor)
        .member("original_max_position", rope.original_max_position)
        .member("beta_fast", rope.beta_fast)
        .member("beta_slow", rope.beta_slow)
        .member("mscale", rope.mscale)
        .member("mscale_all_dim", rope.mscale_all_dim);
  out.member("amplitude", amplitude).end_object();
}

template <class T>
void write_list(JsonWriter& out, std::string_view name, const std::vector<T>& values) {
  out.key(name).begin_array();
  for (const T& value : values) out.value(value);
  out.end_array();
}

void write_config(JsonWriter& out, const ModelConfig& c) {
  out.key("config").begin_object();
  out.member("model_type", c.model_type).member("architecture", c.architecture);
  out.member("vocab_size", c.vocab_size).member("hidden_size", c.hidden_size).member("num_layers", c.num_layers);
  out.member("num_dense_layers", c.num_dense_layers()).member("max_position", c.max_position);
  out.member("num_heads", c.num_heads).member("q_lora_rank", c.q_lora_rank).member("kv_lora_rank", c.kv_lora_rank);
  out.member("qk_nope_head_dim", c.qk_nope_head_dim).member("qk_rope_head_dim", c.qk_rope_head_dim);
  out.member("v_head_dim", c.v_head_dim).member("rms_norm_eps", c.rms_norm_eps);
  out.member("mla_lora_norm_eps", c.mla_lora_norm_eps).member("softmax_scale", c.softmax_scale);
  write_rope(out, c.rope, c.rope_amplitude);
  out.member("intermediate_size", c.intermediate_size).member("moe_intermediate_size", c.moe_intermediate_size);
  out.member("num_experts", c.num_experts).member("num_experts_per_token", c.num_experts_per_token);
  out.member("num_shared_experts", c.num_shared_experts).member("num_groups", c.num_groups);
  out.member("topk_groups", c.topk_groups).member("scoring", scoring_name(c.scoring));
  out.member("topk_method", topk_method_name(c.topk_method)).member("norm_topk_prob", c.norm_topk_prob);
  out.member("routed_scaling_factor", c.routed_scaling_factor).member("int4_group_size", c.int4_group_size);
  out.member("tie_word_embeddings", c.tie_word_embeddings);
  write_list(out, "eos_ids", c.eos_ids);
  out.end_object();
}

void write_target(JsonWriter& out, const TargetReport& r) {
  out.key("target").begin_object().member("dir", r.dir);
  write_config(out, r.config);
  out.member("shards", r.shards);
  write_count(out, "all", r.all);
  write_count(out, "weight_shape", r.shapes);
  write_count(out, "skipped", r.skipped);
  write_weights(out, "weights", r.weights);
  out.key("per_rank").begin_object().member("tp", r.plan.tp);
  write_weights(out, "weights", r.plan.weights);
  out.member("kv_bytes_per_token", r.plan.kv_bytes_per_token).end_object().end_object();
}

void write_drafter(JsonWriter& out, const DrafterReport& r) {
  const DrafterConfig& c = r.config;
  out.key("drafter").begin_object().member("dir", r.dir);
  out.member("block_size", c.block_size).member("mask_token_id", c.mask_token_id).member("num_layers", c.num_layers);
  out.member("hidden_size", c.hidden_size).member("num_heads", c.num_heads).member("num_kv_heads", c.num_kv_heads);
  out.member("head_dim", c.head_dim);
  write_list(out, "target_layer_ids", c.target_layer_ids);
  write_rope(out, c.rope, c.rope_amplitude);
  write_count(out, "all", r.all);
  out.member("weight_bytes", r.weight_bytes).member("kv_bytes_per_token", r.kv_bytes_per_token).end_object();
}

}  // namespace

std::string to_text(const Inspection& inspection) {
  std::string text;
  if (inspection.target) print_target(std::back_inserter(text), *inspection.target);
  if (inspection.target && inspection.drafter) text += '\n';
  if (inspection.drafter) print_drafter(std::back_inserter(text), *inspection.drafter);
  return text;
}

std::string to_json(const Inspection& inspection) {
  JsonWriter out(2);
  out.begin_object();
  if (inspection.target) write_target(out, *inspection.target);
  if (inspection.drafter) write_drafter(out, *inspection.drafter);
  out.end_object();
  return std::move(out).text() + "\n";
}

}  // namespace ddtree
