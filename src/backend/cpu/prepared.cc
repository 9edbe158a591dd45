#include "backend/cpu/prepared.h"

namespace ddtree::cpu {
namespace {

Result<Mlp> pack_mlp(const MlpSource& source, WeightArena& arena, std::string_view name) {
  Mlp mlp;
  TRY_ASSIGN(mlp.gate_up, pack_gate_up(source.gate, source.up, arena, name));
  TRY_ASSIGN(mlp.down, pack({&source.down, 1}, arena, name));
  mlp.inter = source.gate.out;
  return mlp;
}

}  // namespace

Result<std::unique_ptr<PreparedLinear>> prepare_linear(std::span<const Linear> parts, WeightArena& arena) {
  auto w = std::make_unique<CpuLinear>();
  TRY_ASSIGN(w->w, pack(parts, arena, "linear"));
  return std::unique_ptr<PreparedLinear>(std::move(w));
}

Result<std::unique_ptr<PreparedMlp>> prepare_mlp(const MlpSource& source, WeightArena& arena) {
  auto w = std::make_unique<CpuMlp>();
  TRY_ASSIGN(w->mlp, pack_mlp(source, arena, "mlp"));
  return std::unique_ptr<PreparedMlp>(std::move(w));
}

Result<std::unique_ptr<PreparedMoe>> prepare_moe(const MoeSource& source, WeightArena& arena) {
  auto w = std::make_unique<CpuMoe>(
      Router(source.routing, source.bias.empty() ? std::vector<float>() : to_f32(source.bias)));
  TRY_ASSIGN(w->router, pack({&source.router, 1}, arena, "router"));
  for (const MlpSource& expert : source.experts) {
    TRY_ASSIGN(Mlp mlp, pack_mlp(expert, arena, "expert"));
    w->experts.push_back(std::move(mlp));
  }
  if (!source.shared.gate.empty()) {
    TRY_ASSIGN(w->shared, pack_mlp(source.shared, arena, "shared expert"));
  }
  return std::unique_ptr<PreparedMoe>(std::move(w));
}

Result<std::unique_ptr<PreparedMla>> prepare_mla(const MlaSource& source, WeightArena& arena, RopeTables& ropes) {
  auto w = std::make_unique<CpuMla>();
  w->heads = source.heads;
  w->kv_lora = source.kv_lora;
  w->nope = source.nope;
  w->rope_dim = source.rope_dim;
  w->v = source.v;
  w->q_rank = source.q_a.empty() ? 0 : source.q_a.out;
  const Linear in[] = {source.q_a.empty() ? source.q_b : source.q_a, source.kv_a};
  TRY_ASSIGN(w->in, pack(in, arena, "attention q_a and kv_a"));
  if (w->q_rank != 0) {
    TRY_ASSIGN(w->q_b, pack({&source.q_b, 1}, arena, "attention q_b"));
    w->q_a_norm = to_f32(source.q_a_norm);
  }
  w->kv_a_norm = to_f32(source.kv_a_norm);
  for (int64_t h = 0; h < w->heads; ++h) {
    const int64_t first = h * (w->nope + w->v);
    TRY_ASSIGN(Matrix key, pack_transposed(source.kv_b, first, w->nope, arena, "attention kv_b"));
    w->key_up.push_back(std::move(key));
  }
  for (int64_t h = 0; h < w->heads; ++h) {
    const Linear rows = slice_rows(source.kv_b, h * (w->nope + w->v) + w->nope, w->v);
    TRY_ASSIGN(Matrix value, pack({&rows, 1}, arena, "attention kv_b"));
    w->value_up.push_back(std::move(value));
  }
  TRY_ASSIGN(w->o, pack({&source.o, 1}, arena, "attention o"));
  w->eps = source.norm_eps;
  w->rope = ropes.add(source.rope);
  return std::unique_ptr<PreparedMla>(std::move(w));
}

Result<std::unique_ptr<PreparedGqa>> prepare_gqa(const GqaSource& source, WeightArena& arena, RopeTables& ropes) {
  auto w = std::make_unique<CpuGqa>();
  w->heads = source.heads;
  w->kv_heads = source.kv_heads;
  w->head_dim = source.head_dim;
  const Linear kv[] = {source.k, source.v};
  TRY_ASSIGN(w->q, pack({&source.q, 1}, arena, "attention q"));
  TRY_ASSIGN(w->kv, pack(kv, arena, "attention k and v"));
  TRY_ASSIGN(w->o, pack({&source.o, 1}, arena, "attention o"));
  if (!source.q_norm.empty()) w->q_norm = to_f32(source.q_norm);
  if (!source.k_norm.empty()) w->k_norm = to_f32(source.k_norm);
  w->eps = source.norm_eps;
  w->rope = ropes.add(source.rope);
  return std::unique_ptr<PreparedGqa>(std::move(w));
}

}  // namespace ddtree::cpu
