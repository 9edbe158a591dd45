#include "backend/cuda/gemm/mla.h"

#include <algorithm>

#include "base/checked.h"

namespace ddtree::cuda {
namespace {

// The products' workspace, then what passes between the launches.
struct Workspace {
  int64_t sums, low, q_nope, turns, values, bytes;
};

Workspace layout(const MlaShape& s, int32_t rows) {
  int64_t products = 0;
  for (const GemmShape& g : {mla_down(s), mla_q_b(s), mla_k_up(s), mla_v_up(s), mla_o(s)})
    products = std::max(products, gemm_workspace_bytes(g, rows));
  const int64_t n = rows, heads = s.heads;
  Workspace w{};
  w.sums = round_up(products, 256);
  w.low = w.sums + round_up(4 * n * mla_down(s).rows, 256);
  w.q_nope = w.low + round_up(2 * n * s.q_lora, 256);
  w.turns = w.q_nope + round_up(2 * n * heads * s.nope, 256);
  w.values = w.turns + round_up(4 * n * s.rope, 256);
  w.bytes = w.values + round_up(2 * n * heads * s.v, 256);
  return w;
}

int64_t latent_width(const MlaShape& s) { return s.kv_lora + s.rope; }

Status pack_q_b(const MlaShape& s, bool interleaved, const void* q_b, void* to, cudaStream_t stream) {
  const GemmShape shape = mla_q_b(s);
  const uint16_t* rows = static_cast<const uint16_t*>(q_b);
  const auto source = [&](int64_t row, int32_t count) { return GemmSource{rows + row * shape.in, shape.in, 1, count}; };
  TRY(clear_gemm(shape, to, stream));
  for (int32_t head = 0; head < s.heads; ++head) {
    const int64_t first = int64_t{head} * shape.rows;
    if (interleaved) {
      TRY(pack_gemm(shape, to, head, 0, 1, source(first, shape.rows), stream));
      continue;
    }
    // The halves of a pair become neighbours.
    TRY(pack_gemm(shape, to, head, 0, 1, source(first, s.nope), stream));
    TRY(pack_gemm(shape, to, head, s.nope, 2, source(first + s.nope, s.rope / 2), stream));
    TRY(pack_gemm(shape, to, head, s.nope + 1, 2, source(first + s.nope + s.rope / 2, s.rope / 2), stream));
  }
  return {};
}

Status pack_kv_b(const MlaShape& s, const void* kv_b, const MlaPacked& to, cudaStream_t stream) {
  const GemmShape keys = mla_k_up(s), values = mla_v_up(s);
  TRY(clear_gemm(keys, to.k_up, stream));
  TRY(clear_gemm(values, to.v_up, stream));
  for (int32_t head = 0; head < s.heads; ++head) {
    const uint16_t* rows = static_cast<const uint16_t*>(kv_b) + int64_t{head} * (s.nope + s.v) * s.kv_lora;
    TRY(pack_gemm(keys, to.k_up, head, 0, 1, {rows, 1, s.kv_lora, s.kv_lora}, stream));
    TRY(pack_gemm(values, to.v_up, head, 0, 1, {rows + int64_t{s.nope} * s.kv_lora, s.kv_lora, 1, s.v}, stream));
  }
  return {};
}

}  // namespace

GemmShape mla_down(const MlaShape& s) { return {1, s.q_lora + s.kv_lora + s.rope, s.hidden}; }
GemmShape mla_q_b(const MlaShape& s) { return {s.heads, s.nope + s.rope, s.q_lora > 0 ? s.q_lora : s.hidden}; }
GemmShape mla_k_up(const MlaShape& s) { return {s.heads, s.kv_lora, s.nope}; }
GemmShape mla_v_up(const MlaShape& s) { return {s.heads, s.v, s.kv_lora}; }
GemmShape mla_o(const MlaShape& s) { return {1, s.hidden, s.heads * s.v}; }

Status check_mla_shape(const MlaShape& s) {
  TRY(check_gemm_shape(mla_down(s), "attention q_a and kv_a"));
  TRY(check_gemm_shape(mla_q_b(s), "attention q_b"));
  TRY(check_gemm_shape(mla_k_up(s), "attention W_UK"));
  TRY(check_gemm_shape(mla_v_up(s), "attention W_UV"));
  TRY(check_gemm_shape(mla_o(s), "attention o"));
  if (s.rope % 8 == 0) return {};
  return Error{Code::kUnsupported, "attention on the GPU: qk_rope_head_dim is " + std::to_string(s.rope) +
                                       "; the kernels need a multiple of 8"};
}

Status pack_mla(const MlaShape& s, bool interleaved, const MlaMatrices& from, const MlaPacked& to,
                cudaStream_t stream) {
  const GemmShape down = mla_down(s), o = mla_o(s);
  TRY(clear_gemm(down, to.down, stream));
  TRY(pack_gemm(down, to.down, 0, 0, 1, {from.q_a, s.hidden, 1, s.q_lora}, stream));
  TRY(pack_gemm(down, to.down, 0, s.q_lora, 1, {from.kv_a, s.hidden, 1, s.kv_lora + s.rope}, stream));
  TRY(pack_q_b(s, interleaved, from.q_b, to.q_b, stream));
  TRY(pack_kv_b(s, from.kv_b, to, stream));
  TRY(clear_gemm(o, to.o, stream));
  return pack_gemm(o, to.o, 0, 0, 1, {from.o, o.in, 1, s.hidden}, stream);
}

int64_t mla_workspace_bytes(const MlaShape& shape, int32_t max_rows) { return layout(shape, max_rows).bytes; }

Status run_mla_project(const MlaShape& s, const Gpu& gpu, const MlaWeights& w, const MlaProjectArgs& args,
                       cudaStream_t stream) {
  const Workspace at = layout(s, args.rows);
  uint8_t* workspace = static_cast<uint8_t*>(args.workspace);
  GemmArgs down;
  down.x = args.x;
  down.x_stride = s.hidden;
  down.rows = args.rows;
  down.out = {.store = GemmStore::kF32, .data = workspace + at.sums, .row_stride = mla_down(s).rows};
  down.workspace = workspace;
  TRY(run_gemm({mla_down(s), w.down}, gpu, down, stream));

  LatentArgs norms;
  norms.sums = reinterpret_cast<const float*>(workspace + at.sums);
  norms.rows = args.rows;
  norms.q_lora = s.q_lora;
  norms.kv_lora = s.kv_lora;
  norms.q_gain = w.q_norm;
  norms.kv_gain = w.kv_norm;
  norms.eps = w.eps;
  norms.rope = w.rope;
  norms.to = args.to;
  norms.low = workspace + at.low;
  norms.turns = workspace + at.turns;
  TRY(run_latent_norms(norms, stream));

  const int64_t head_width = latent_width(s);
  uint16_t* q = static_cast<uint16_t*>(args.q);
  GemmArgs query;
  query.x = s.q_lora > 0 ? workspace + at.low : args.x;
  query.x_stride = mla_q_b(s).in;
  query.rows = args.rows;
  query.out = {.store = GemmStore::kRope,
               .data = workspace + at.q_nope,
               .row_stride = int64_t{s.heads} * s.nope,
               .group_stride = s.nope,
               .rotated = q + s.kv_lora,
               .rotated_row_stride = s.heads * head_width,
               .rotated_group_stride = head_width,
               .turns = workspace + at.turns,
               .plain_rows = s.nope,
               .interleaved = w.rope.interleaved};
  query.workspace = workspace;
  TRY(run_gemm({mla_q_b(s), w.q_b}, gpu, query, stream));

  GemmArgs absorb;
  absorb.x = workspace + at.q_nope;
  absorb.x_stride = int64_t{s.heads} * s.nope;
  absorb.x_group = s.nope;
  absorb.rows = args.rows;
  absorb.out = {.data = q, .row_stride = s.heads * head_width, .group_stride = head_width};
  absorb.workspace = workspace;
  return run_gemm({mla_k_up(s), w.k_up}, gpu, absorb, stream);
}

Status run_mla_output(const MlaShape& s, const Gpu& gpu, const MlaWeights& w, const MlaOutputArgs& args,
                      cudaStream_t stream) {
  uint8_t* workspace = static_cast<uint8_t*>(args.workspace);
  void* values = workspace + layout(s, args.rows).values;
  GemmArgs up;
  up.x = args.attended;
  up.x_stride = int64_t{s.heads} * s.kv_lora;
  up.x_group = s.kv_lora;
  up.rows = args.rows;
  up.out = {.data = values, .row_stride = int64_t{s.heads} * s.v, .group_stride = s.v};
  up.workspace = workspace;
  TRY(run_gemm({mla_v_up(s), w.v_up}, gpu, up, stream));
  GemmArgs out;
  out.x = values;
  out.x_stride = int64_t{s.heads} * s.v;
  out.rows = args.rows;
  out.out = {.data = args.out, .row_stride = s.hidden};
  out.workspace = workspace;
  return run_gemm({mla_o(s), w.o}, gpu, out, stream);
}

}  // namespace ddtree::cuda
