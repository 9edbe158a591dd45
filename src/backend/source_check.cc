#include "backend/source_check.h"

#include <fmt/format.h>

namespace ddtree {
namespace {

constexpr int32_t kMaxField = 1 << 20;  // keeps every product of two fields and a sum far from overflow

Error mismatch(std::string message) { return Error{Code::kInvalidArgument, std::move(message)}; }

bool has_shape(const TensorView& view, int64_t rows, int64_t columns) {
  return view.rank == 2 && view.dim[0] == rows && view.dim[1] == columns;
}

Status check_field(int32_t value, std::string_view name) {
  if (value >= 1 && value <= kMaxField) return {};
  return mismatch(fmt::format("{} is {}; it must be 1 to {}", name, value, kMaxField));
}

Status check_linear(const Linear& w, std::string_view name) {
  if (w.empty()) return mismatch(fmt::format("{}: weight is missing", name));
  if (w.out < 1 || w.in < 1) return mismatch(fmt::format("{}: size [{}, {}] has no elements", name, w.out, w.in));
  if (w.group_size == 0) {
    if (!is_float(w.weight.dtype))
      return mismatch(fmt::format("{}: weight is {}; it must be BF16, F16 or F32", name, describe(w.weight)));
    if (!has_shape(w.weight, w.out, w.in))
      return mismatch(fmt::format("{}: weight is {}; [{}, {}] is needed", name, describe(w.weight), w.out, w.in));
    if (!w.scale.empty()) return mismatch(fmt::format("{}: a scale without a group size", name));
    return {};
  }
  if (w.group_size < 0 || w.in % 8 != 0 || w.in % w.group_size != 0)
    return mismatch(
        fmt::format("{}: {} inputs do not divide into words of 8 and groups of {}", name, w.in, w.group_size));
  if (w.weight.dtype != DType::kI32 || !has_shape(w.weight, w.out, w.in / 8))
    return mismatch(
        fmt::format("{}: packed weight is {}; I32 [{}, {}] is needed", name, describe(w.weight), w.out, w.in / 8));
  if (w.scale.empty() || !is_float(w.scale.dtype) || !has_shape(w.scale, w.out, w.in / w.group_size))
    return mismatch(fmt::format("{}: scale is {}; BF16, F16 or F32 [{}, {}] is needed", name,
                                w.scale.empty() ? "missing" : describe(w.scale), w.out, w.in / w.group_size));
  return {};
}

Status check_linear(const Linear& w, int64_t out, int64_t in, std::string_view name) {
  TRY(check_linear(w, name));
  if (w.out == out && w.in == in) return {};
  return mismatch(fmt::format("{}: weight is [{}, {}]; [{}, {}] is needed", name, w.out, w.in, out, in));
}

Status check_vector(const TensorView& values, int64_t n, std::string_view name) {
  TRY(check_vector(values, name));
  if (values.dim[0] == n) return {};
  return mismatch(fmt::format("{} is {}; [{}] is needed", name, describe(values), n));
}

Status check_rope(const Rope& rope, int32_t limit) {
  if (rope.dim < 0 || rope.dim % 2 != 0 || rope.dim > limit)
    return mismatch(fmt::format("rope dim is {}; it must be even and at most {}", rope.dim, limit));
  if (rope.inv_freq.size() * 2 == static_cast<size_t>(rope.dim)) return {};
  return mismatch(
      fmt::format("rope has {} frequencies; {} values need {}", rope.inv_freq.size(), rope.dim, rope.dim / 2));
}

Status check_mlp(const MlpSource& s, int64_t hidden, std::string_view name) {
  TRY(check_linear(s.gate, s.gate.out, hidden, fmt::format("{} gate", name)));
  TRY(check_linear(s.up, s.gate.out, hidden, fmt::format("{} up", name)));
  return check_linear(s.down, hidden, s.gate.out, fmt::format("{} down", name));
}

Status check_routing(const MoeRouting& r, int64_t experts) {
  TRY(check_field(r.top_k, "experts per token"));
  TRY(check_field(r.groups, "expert groups"));
  TRY(check_field(r.top_groups, "groups per token"));
  if (experts % r.groups != 0)
    return mismatch(fmt::format("{} experts do not divide into {} groups", experts, r.groups));
  if (r.top_groups > r.groups)
    return mismatch(fmt::format("groups per token is {}, but there are {} groups", r.top_groups, r.groups));
  if (r.top_k > experts / r.groups * r.top_groups)
    return mismatch(
        fmt::format("experts per token is {}, but only {} take part", r.top_k, experts / r.groups * r.top_groups));
  return {};
}

}  // namespace

Status check_vector(const TensorView& values, std::string_view name) {
  if (values.empty()) return mismatch(fmt::format("{} is missing", name));
  if (values.rank == 1 && values.dim[0] >= 1 && is_float(values.dtype)) return {};
  return mismatch(fmt::format("{} is {}; a vector of F32, BF16 or F16 is needed", name, describe(values)));
}

Status check_source(std::span<const Linear> parts) {
  if (parts.empty()) return mismatch("linear: no parts");
  for (const Linear& part : parts) TRY(check_linear(part, part.out, parts[0].in, "linear"));
  return {};
}

Status check_source(const MlaSource& s) {
  TRY(check_field(s.heads, "attention heads"));
  TRY(check_field(s.kv_lora, "kv_lora_rank"));
  TRY(check_field(s.nope, "qk_nope_head_dim"));
  TRY(check_field(s.rope_dim, "qk_rope_head_dim"));
  TRY(check_field(s.v, "v_head_dim"));
  const int64_t heads = s.heads;
  const int64_t hidden = s.kv_a.in;
  TRY(check_linear(s.kv_a, s.kv_lora + s.rope_dim, hidden, "attention kv_a"));
  TRY(check_vector(s.kv_a_norm, s.kv_lora, "attention kv_a norm"));
  TRY(check_linear(s.kv_b, heads * (s.nope + s.v), s.kv_lora, "attention kv_b"));
  TRY(check_linear(s.o, hidden, heads * s.v, "attention o"));
  if (s.q_a.empty()) {
    if (!s.q_a_norm.empty()) return mismatch("attention q_a norm without q_a");
    TRY(check_linear(s.q_b, heads * (s.nope + s.rope_dim), hidden, "attention q"));
  } else {
    TRY(check_linear(s.q_a, s.q_a.out, hidden, "attention q_a"));
    TRY(check_vector(s.q_a_norm, s.q_a.out, "attention q_a norm"));
    TRY(check_linear(s.q_b, heads * (s.nope + s.rope_dim), s.q_a.out, "attention q_b"));
  }
  if (s.rope.dim != s.rope_dim)
    return mismatch(fmt::format("rope dim is {}; qk_rope_head_dim is {}", s.rope.dim, s.rope_dim));
  return check_rope(s.rope, s.rope_dim);
}

Status check_source(const GqaSource& s) {
  TRY(check_field(s.heads, "attention heads"));
  TRY(check_field(s.kv_heads, "key-value heads"));
  TRY(check_field(s.head_dim, "head_dim"));
  if (s.heads % s.kv_heads != 0)
    return mismatch(fmt::format("{} attention heads do not divide into {} key-value heads", s.heads, s.kv_heads));
  const int64_t dim = s.head_dim;
  TRY(check_linear(s.q, s.heads * dim, s.q.in, "attention q"));
  TRY(check_linear(s.k, s.kv_heads * dim, s.q.in, "attention k"));
  TRY(check_linear(s.v, s.kv_heads * dim, s.q.in, "attention v"));
  TRY(check_linear(s.o, s.q.in, s.heads * dim, "attention o"));
  if (!s.q_norm.empty()) TRY(check_vector(s.q_norm, dim, "attention q norm"));
  if (!s.k_norm.empty()) TRY(check_vector(s.k_norm, dim, "attention k norm"));
  return check_rope(s.rope, s.head_dim);
}

Status check_source(const MlpSource& s) { return check_mlp(s, s.gate.in, "mlp"); }

Status check_source(const MoeSource& s) {
  const auto experts = static_cast<int64_t>(s.experts.size());
  if (experts == 0) return mismatch("experts: none");
  TRY(check_linear(s.router, experts, s.router.in, "router"));
  TRY(check_routing(s.routing, experts));
  if (!s.bias.empty()) TRY(check_vector(s.bias, experts, "router bias"));
  for (int64_t e = 0; e < experts; ++e) {
    TRY(check_mlp(s.experts[e], s.router.in, fmt::format("expert {}", e)));
    if (s.experts[e].gate.out != s.experts[0].gate.out)
      return mismatch(
          fmt::format("expert {} is {} wide; expert 0 is {}", e, s.experts[e].gate.out, s.experts[0].gate.out));
  }
  const bool shared = !s.shared.gate.empty() || !s.shared.up.empty() || !s.shared.down.empty();
  if (shared) TRY(check_mlp(s.shared, s.router.in, "shared expert"));
  return {};
}

}  // namespace ddtree
