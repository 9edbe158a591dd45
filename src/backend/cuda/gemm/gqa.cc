#include "backend/cuda/gemm/gqa.h"

#include <algorithm>

#include "base/checked.h"

namespace ddtree::cuda {
namespace {

// The products' workspace, then the sums of queries and of keys and values.
struct Workspace {
  int64_t q, kv, bytes;
};

Workspace layout(const GqaShape& s, int32_t rows) {
  int64_t products = 0;
  for (const GemmShape& g : {gqa_q(s), gqa_kv(s), gqa_o(s)})
    products = std::max(products, gemm_workspace_bytes(g, rows));
  Workspace w{};
  w.q = round_up(products, 256);
  w.kv = w.q + round_up(4 * int64_t{rows} * gqa_q(s).rows, 256);
  w.bytes = w.kv + round_up(4 * int64_t{rows} * gqa_kv(s).rows, 256);
  return w;
}

Status run_sums(const GemmWeights& weights, const Gpu& gpu, const GqaProjectArgs& args, void* sums,
                cudaStream_t stream) {
  GemmArgs product;
  product.x = args.x;
  product.x_stride = weights.shape.in;
  product.rows = args.rows;
  product.out = {.store = GemmStore::kF32, .data = sums, .row_stride = weights.shape.rows};
  product.workspace = args.workspace;
  return run_gemm(weights, gpu, product, stream);
}

}  // namespace

GemmShape gqa_q(const GqaShape& s) { return {1, s.heads * s.head_dim, s.hidden}; }
GemmShape gqa_kv(const GqaShape& s) { return {1, 2 * s.kv_heads * s.head_dim, s.hidden}; }
GemmShape gqa_o(const GqaShape& s) { return {1, s.hidden, s.heads * s.head_dim}; }

Status check_gqa_shape(const GqaShape& s) {
  TRY(check_gemm_shape(gqa_q(s), "attention q"));
  TRY(check_gemm_shape(gqa_kv(s), "attention k and v"));
  return check_gemm_shape(gqa_o(s), "attention o");
}

Status pack_gqa(const GqaShape& s, const GqaMatrices& from, const GqaPacked& to, cudaStream_t stream) {
  const GemmShape q = gqa_q(s), kv = gqa_kv(s), o = gqa_o(s);
  const int32_t keys = s.kv_heads * s.head_dim;
  TRY(clear_gemm(q, to.q, stream));
  TRY(pack_gemm(q, to.q, 0, 0, 1, {from.q, s.hidden, 1, q.rows}, stream));
  TRY(clear_gemm(kv, to.kv, stream));
  TRY(pack_gemm(kv, to.kv, 0, 0, 1, {from.k, s.hidden, 1, keys}, stream));
  TRY(pack_gemm(kv, to.kv, 0, keys, 1, {from.v, s.hidden, 1, keys}, stream));
  TRY(clear_gemm(o, to.o, stream));
  return pack_gemm(o, to.o, 0, 0, 1, {from.o, o.in, 1, s.hidden}, stream);
}

int64_t gqa_workspace_bytes(const GqaShape& shape, int32_t max_rows) { return layout(shape, max_rows).bytes; }

Status run_gqa_project(const GqaShape& s, const Gpu& gpu, const GqaWeights& w, const GqaProjectArgs& args,
                       cudaStream_t stream) {
  const Workspace at = layout(s, args.rows);
  uint8_t* workspace = static_cast<uint8_t*>(args.workspace);
  if (args.q != nullptr) TRY(run_sums({gqa_q(s), w.q}, gpu, args, workspace + at.q, stream));
  TRY(run_sums({gqa_kv(s), w.kv}, gpu, args, workspace + at.kv, stream));
  HeadsArgs heads;
  heads.q = args.q == nullptr ? nullptr : reinterpret_cast<const float*>(workspace + at.q);
  heads.kv = reinterpret_cast<const float*>(workspace + at.kv);
  heads.rows = args.rows;
  heads.heads = s.heads;
  heads.kv_heads = s.kv_heads;
  heads.head_dim = s.head_dim;
  heads.q_gain = w.q_norm;
  heads.k_gain = w.k_norm;
  heads.eps = w.eps;
  heads.rope = w.rope;
  heads.to = args.to;
  heads.q_out = args.q;
  return run_head_norms(heads, stream);
}

Status run_gqa_output(const GqaShape& s, const Gpu& gpu, const GqaWeights& w, const GqaOutputArgs& args,
                      cudaStream_t stream) {
  GemmArgs out;
  out.x = args.attended;
  out.x_stride = gqa_o(s).in;
  out.rows = args.rows;
  out.out = {.data = args.out, .row_stride = s.hidden};
  out.workspace = args.workspace;
  return run_gemm({gqa_o(s), w.o}, gpu, out, stream);
}

}  // namespace ddtree::cuda
