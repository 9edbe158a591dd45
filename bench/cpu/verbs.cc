#include "verbs.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/bf16.h"
#include "base/checked.h"
#include "base/philox.h"

namespace ddtree::bench {
namespace {

// Numbers and weights that are the same on every backend.
class Maker {
 public:
  explicit Maker(uint64_t seed) : seed_(seed) {}

  // Uniform in [-1, 1) · size.
  void fill(float* values, int64_t n, float size) {
    for (int64_t i = 0; i < n; ++i) values[i] = (static_cast<float>(bits() >> 8) * 0x1p-23f - 1.0f) * size;
  }
  Linear bf16(int64_t out, int64_t in) {
    return {store_bf16(out, in, 1.7f / std::sqrt(static_cast<float>(in))), {}, 0, out, in};
  }
  Linear int4(int64_t out, int64_t in) {
    auto& words = owned_.emplace_back(static_cast<size_t>(out * in / 8));
    for (uint32_t& w : words) w = bits();
    const TensorView scale = store_bf16(out, in / 32, 0.35f / std::sqrt(static_cast<float>(in)));
    return {TensorView(words.data(), DType::kI32, {out, in / 8}), scale, 32, out, in};
  }
  MlpSource mlp(int64_t hidden, int64_t inter, bool packed) {
    const auto linear = [&](int64_t out, int64_t in) { return packed ? int4(out, in) : bf16(out, in); };
    return {linear(inter, hidden), linear(inter, hidden), linear(hidden, inter)};
  }
  TensorView gain(int64_t n) {
    auto& values = owned_.emplace_back(static_cast<size_t>(n));
    for (uint32_t& v : values) v = std::bit_cast<uint32_t>(1.0f);
    return TensorView(values.data(), DType::kF32, {n});
  }

 private:
  uint32_t bits() {
    if (left_ == 0) {
      block_ = philox4x32({static_cast<uint32_t>(count_), static_cast<uint32_t>(count_ >> 32), 0, 0}, seed_);
      ++count_;
      left_ = 4;
    }
    return block_[static_cast<size_t>(--left_)];
  }
  TensorView store_bf16(int64_t rows, int64_t columns, float size) {
    auto& words = owned_.emplace_back(static_cast<size_t>(ceil_div(rows * columns, 2)));
    auto* values = reinterpret_cast<uint16_t*>(words.data());
    for (int64_t i = 0; i < rows * columns; ++i) {
      float v;
      fill(&v, 1, size);
      values[i] = f32_to_bf16(v);
    }
    return TensorView(values, DType::kBF16, {rows, columns});
  }

  uint64_t seed_, count_ = 0;
  PhiloxCounter block_ = {};
  int left_ = 0;
  std::deque<std::vector<uint32_t>> owned_;
};

template <class T>
T must(Result<T> result) {
  if (!result.ok()) check_failed(__FILE__, __LINE__, "op_bench", result.error().message);
  return *std::move(result);
}

// What all verbs need: a staged batch of one stream (rows are a chunk behind `context` keys), input, output, cache.
class RowsOnBackend {
 public:
  RowsOnBackend(Backend& backend, int64_t rows, int64_t in, int64_t out, int64_t cache_width, int32_t context)
      : backend_(backend), context_(context) {
    input_ = tensor(rows, in, 11);
    output_ = tensor(rows, out, 0);
    const int64_t pages = ceil_div(context, kPageRows);
    cache_ = tensor(pages * kPageRows + rows, std::max<int64_t>(cache_width, 1), 13);
    for (int32_t p = 0; p < pages; ++p) pages_.push_back(p);
  }

  Backend& backend() { return backend_; }
  TensorView input(int64_t rows) const { return input_.slice(0, rows); }
  TensorView output(int64_t rows) const { return output_.slice(0, rows); }
  TensorView cache() const { return cache_; }

  void stage(int64_t rows) {
    if (batch_.rows() == rows) return;
    batch_ = {};
    for (int32_t r = 0; r < rows; ++r) {
      batch_.token.push_back((r * 37 + 5) % 4096);
      batch_.position.push_back(context_ + r);
      batch_.kv_row.push_back(static_cast<int32_t>(ceil_div(context_, kPageRows)) * kPageRows + r);
    }
    batch_.segments.push_back({0, 0, static_cast<int32_t>(rows), context_, false, pages_});
    backend_.stage(batch_);
  }
  TensorView tensor(int64_t rows, int64_t columns, uint64_t seed) {
    buffers_.push_back(must(backend_.allocate(rows * columns * 4, "bench")));
    const TensorView view = buffers_.back().view(DType::kF32, {rows, columns});
    Maker(seed).fill(view.as<float>(), rows * columns, seed == 0 ? 0.0f : 1.7f);
    return view;
  }

 private:
  Backend& backend_;
  int32_t context_;
  std::deque<Buffer> buffers_;
  TensorView input_, output_, cache_;
  std::vector<int32_t> pages_;
  Batch batch_;
};

template <class Prepared>
class PreparedVerb : public Verb {
 public:
  using Run = std::function<void(RowsOnBackend&, const Prepared&, int64_t rows)>;
  PreparedVerb(std::unique_ptr<RowsOnBackend> rows, Run run) : rows_(std::move(rows)), run_(std::move(run)) {}

  void add(std::unique_ptr<Prepared> copy) { copies_.push_back(std::move(copy)); }
  int copies() const override { return static_cast<int>(copies_.size()); }
  void run(int copy, int64_t rows) override {
    rows_->stage(rows);
    run_(*rows_, *copies_[static_cast<size_t>(copy)], rows);
  }
  TensorView output(int64_t rows) const override { return rows_->output(rows); }

 private:
  std::unique_ptr<RowsOnBackend> rows_;
  Run run_;
  std::vector<std::unique_ptr<Prepared>> copies_;
};

// `source(maker)` makes the checkpoint's weights; they are prepared until the copies fill the working set.
template <class Prepared, class Source>
std::function<std::unique_ptr<Verb>(Backend&, int64_t, int64_t)> maker_of(int64_t in, int64_t out, int64_t cache_width,
                                                                          int32_t context, double weight_bytes,
                                                                          Source source,
                                                                          typename PreparedVerb<Prepared>::Run run) {
  return [=](Backend& backend, int64_t working_set, int64_t rows) -> std::unique_ptr<Verb> {
    auto verb = std::make_unique<PreparedVerb<Prepared>>(
        std::make_unique<RowsOnBackend>(backend, rows, in, out, cache_width, context), run);
    const double copies = std::max(1.0, std::ceil(static_cast<double>(working_set) / weight_bytes));
    for (int i = 0; i < static_cast<int>(copies); ++i) {
      Maker maker(7);
      verb->add(must(backend.prepare(source(maker))));
    }
    return verb;
  };
}

double bf16_bytes(int64_t out, int64_t in) { return 2.0 * static_cast<double>(out * in); }
double int4_bytes(int64_t out, int64_t in) { return 0.5625 * static_cast<double>(out * in); }
auto constant(double value) {
  return [value](int64_t) { return value; };
}
auto per_row(double multiply_adds) {
  return [multiply_adds](int64_t rows) { return 2 * multiply_adds * static_cast<double>(rows); };
}

VerbCase linear_case(std::string name, int64_t out, int64_t in, bool cached) {
  VerbCase c{std::move(name), std::to_string(in) + " -> " + std::to_string(out) + " bf16", cached, {}, {}, {}};
  const double bytes = bf16_bytes(out, in);
  c.bytes = constant(bytes);
  c.flops = per_row(static_cast<double>(out * in));
  // PreparedLinear takes a span: one part.
  const auto source = [=](Maker& maker) {
    static thread_local Linear part;
    part = maker.bf16(out, in);
    return std::span<const Linear>(&part, 1);
  };
  c.make = maker_of<PreparedLinear>(in, out, 0, 0, bytes, source,
                                    [](RowsOnBackend& r, const PreparedLinear& w, int64_t rows) {
                                      r.backend().linear(r.output(rows), r.input(rows), w);
                                    });
  return c;
}

VerbCase mlp_case(std::string name, int64_t hidden, int64_t inter, bool packed, bool cached) {
  VerbCase c{std::move(name),
             std::to_string(hidden) + " x " + std::to_string(inter) + (packed ? " int4" : " bf16"),
             cached,
             {},
             {},
             {}};
  const double bytes = 3 * (packed ? int4_bytes(inter, hidden) : bf16_bytes(inter, hidden));
  c.bytes = constant(bytes);
  c.flops = per_row(3.0 * static_cast<double>(hidden * inter));
  c.make = maker_of<PreparedMlp>(
      hidden, hidden, 0, 0, bytes, [=](Maker& maker) { return maker.mlp(hidden, inter, packed); },
      [](RowsOnBackend& r, const PreparedMlp& w, int64_t rows) { r.backend().mlp(r.output(rows), r.input(rows), w); });
  return c;
}

// The demo model's attention: hidden 256, 4 heads, q_lora 128, kv_lora 512, 128 + 64 per query and key, 128 per value.
constexpr int32_t kHidden = 256, kHeads = 4, kQRank = 128, kLatent = 512, kNope = 128, kRope = 64, kValue = 128;
constexpr int32_t kKey = kLatent + kRope, kContext = 512;

MlaSource mla_source(Maker& maker) {
  MlaSource s;
  s.heads = kHeads;
  s.kv_lora = kLatent;
  s.nope = kNope;
  s.rope_dim = kRope;
  s.v = kValue;
  s.q_a = maker.bf16(kQRank, kHidden);
  s.q_b = maker.bf16(kHeads * (kNope + kRope), kQRank);
  s.kv_a = maker.bf16(kKey, kHidden);
  s.kv_b = maker.bf16(kHeads * (kNope + kValue), kLatent);
  s.o = maker.bf16(kHidden, kHeads * kValue);
  s.q_a_norm = maker.gain(kQRank);
  s.kv_a_norm = maker.gain(kLatent);
  s.norm_eps = 1e-6f;
  s.rope.dim = kRope;
  s.rope.interleaved = true;
  for (int i = 0; i < kRope / 2; ++i) s.rope.inv_freq.push_back(std::pow(50000.0, -2.0 * i / kRope));
  return s;
}

VerbCase mla_case(bool project) {
  const int64_t in_weights =
      int64_t{kQRank + kKey} * kHidden + int64_t{kHeads} * (kNope + kRope) * kQRank + int64_t{kHeads} * kNope * kLatent;
  const int64_t out_weights = int64_t{kHeads} * kValue * kLatent + int64_t{kHidden} * kHeads * kValue;
  const int64_t weights = project ? in_weights : out_weights;
  VerbCase c{project ? "mla_project" : "mla_output", "demo, bf16", true, {}, {}, {}};
  c.bytes = constant(2.0 * static_cast<double>(weights));
  c.flops = per_row(static_cast<double>(weights));
  const auto run = [=](RowsOnBackend& r, const PreparedMla& w, int64_t rows) {
    TensorView wide = project ? r.output(rows) : r.input(rows);
    wide.rank = 3;
    wide.dim = {rows, kHeads, project ? kKey : kLatent};
    if (project)
      r.backend().mla_project(wide, r.input(rows), w, r.cache());
    else
      r.backend().mla_output(r.output(rows), wide, w);
  };
  c.make = project
               ? maker_of<PreparedMla>(kHidden, kHeads * kKey, kKey, kContext, 2.0 * in_weights, mla_source, run)
               : maker_of<PreparedMla>(kHeads * kLatent, kHidden, kKey, kContext, 2.0 * out_weights, mla_source, run);
  return c;
}

// Attention has no weights; its copies are caches.
class AttendVerb : public Verb {
 public:
  AttendVerb(Backend& backend, int64_t working_set, int64_t rows)
      : rows_(backend, rows, kHeads * kKey, kHeads * kLatent, kKey, kContext) {
    const int64_t cache_rows = rows_.cache().rows();
    const int64_t copies = std::max<int64_t>(1, working_set / rows_.cache().bytes());
    const TensorView all = rows_.tensor(copies * cache_rows, kKey, 13);
    for (int64_t i = 0; i < copies; ++i) caches_.push_back(all.slice(i * cache_rows, cache_rows));
  }
  int copies() const override { return static_cast<int>(caches_.size()); }
  void run(int copy, int64_t rows) override {
    rows_.stage(rows);
    TensorView q = rows_.input(rows), out = rows_.output(rows);
    q.rank = out.rank = 3;
    q.dim = {rows, kHeads, kKey};
    out.dim = {rows, kHeads, kLatent};
    AttendSpec spec;
    spec.scale = 0.0935652f;
    spec.heads = kHeads;
    spec.qk_dim = kKey;
    spec.v_dim = kLatent;
    rows_.backend().attend(out, q, caches_[static_cast<size_t>(copy)], spec);
  }
  TensorView output(int64_t rows) const override { return rows_.output(rows); }

 private:
  RowsOnBackend rows_;
  std::vector<TensorView> caches_;
};

VerbCase attend_case() {
  VerbCase c{"attend", "4 heads, 512 keys before", true, {}, {}, {}};
  c.bytes = [](int64_t rows) { return 4.0 * kKey * static_cast<double>(kContext + rows); };
  c.flops = [](int64_t rows) {
    const double keys = static_cast<double>(rows) * (kContext + 0.5 * static_cast<double>(rows + 1));
    return 2.0 * kHeads * (kKey + kLatent) * keys;
  };
  c.make = [](Backend& b, int64_t working_set, int64_t rows) {
    return std::make_unique<AttendVerb>(b, working_set, rows);
  };
  return c;
}

// The demo model's experts: 32, top 4, inter 128, INT4, with a shared one in bf16. Bytes are of as many distinct
// experts as uniform routing touches.
VerbCase moe_case() {
  constexpr int64_t kExperts = 32, kTop = 4, kInter = 128;
  VerbCase c{"moe", "32 experts, top 4, int4 + shared", true, {}, {}, {}};
  const double fixed = bf16_bytes(kExperts, kHidden) + 3 * bf16_bytes(kInter, kHidden);
  c.bytes = [=](int64_t rows) {
    const double active =
        kExperts * (1 - std::pow(1 - static_cast<double>(kTop) / kExperts, static_cast<double>(rows)));
    return fixed + active * 3 * int4_bytes(kInter, kHidden);
  };
  c.flops = per_row(static_cast<double>(kExperts * kHidden + (kTop + 1) * 3 * kInter * kHidden));
  const auto source = [](Maker& maker) {
    MoeSource s;
    s.routing.top_k = kTop;
    s.routing.scale = 2.5f;
    s.router = maker.bf16(kExperts, kHidden);
    for (int64_t e = 0; e < kExperts; ++e) s.experts.push_back(maker.mlp(kHidden, kInter, true));
    s.shared = maker.mlp(kHidden, kInter, false);
    return s;
  };
  const double bytes = fixed + kExperts * 3 * int4_bytes(kInter, kHidden);
  c.make = maker_of<PreparedMoe>(
      kHidden, kHidden, 0, 0, bytes, source,
      [](RowsOnBackend& r, const PreparedMoe& w, int64_t rows) { r.backend().moe(r.output(rows), r.input(rows), w); });
  return c;
}

// Top 64 and log-sum-exp. The output compared is the logits, which timed runs do not ask for.
class HeadVerb : public Verb {
 public:
  static constexpr int64_t kVocabulary = 4096, kTop = 64;
  HeadVerb(Backend& backend, int64_t working_set, int64_t rows)
      : rows_(backend, rows, kHidden, kTop + 1, 0, 0), ids_(static_cast<size_t>(rows * kTop)) {
    const double bytes = bf16_bytes(kVocabulary, kHidden);
    for (int64_t i = 0; i < std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(working_set) / bytes)); ++i) {
      Maker maker(7);
      const Linear w = maker.bf16(kVocabulary, kHidden);
      copies_.push_back(must(backend.prepare(std::span<const Linear>(&w, 1))));
    }
  }
  int copies() const override { return static_cast<int>(copies_.size()); }
  void run(int copy, int64_t rows) override {
    HeadResult result;
    result.top_value = rows_.output(rows);
    result.top_value.dim[1] = kTop;
    result.lse = TensorView(rows_.output(rows).row<float>(0) + kTop, DType::kF32, {rows});
    result.lse.row_stride = kTop + 1;
    result.top_id = TensorView(ids_.data(), DType::kI32, {rows, kTop});
    rows_.backend().head(result, rows_.input(rows), *copies_[static_cast<size_t>(copy)]);
  }
  TensorView output(int64_t rows) const override { return rows_.output(rows); }

 private:
  RowsOnBackend rows_;
  std::vector<int32_t> ids_;
  std::vector<std::unique_ptr<PreparedLinear>> copies_;
};

VerbCase head_case() {
  VerbCase c{"head", "256 -> 4096 bf16, top 64", true, {}, {}, {}};
  c.bytes = constant(bf16_bytes(HeadVerb::kVocabulary, kHidden));
  c.flops = per_row(static_cast<double>(HeadVerb::kVocabulary) * kHidden);
  c.make = [](Backend& b, int64_t working_set, int64_t rows) {
    return std::make_unique<HeadVerb>(b, working_set, rows);
  };
  return c;
}

VerbCase norm_case() {
  VerbCase c{"rms_norm", "256", true, {}, {}, {}};
  c.bytes = [](int64_t rows) { return 2.0 * 4 * kHidden * static_cast<double>(rows); };
  c.flops = per_row(1.5 * kHidden);
  const auto source = [](Maker& maker) {
    static thread_local Linear part;
    part = maker.bf16(kHidden, 8);
    return std::span<const Linear>(&part, 1);
  };
  c.make = maker_of<PreparedLinear>(
      kHidden, kHidden, 0, 0, 1e9, source, [](RowsOnBackend& r, const PreparedLinear&, int64_t rows) {
        static thread_local std::vector<float> gain(kHidden, 1.0f);
        r.backend().rms_norm(r.output(rows), r.input(rows), TensorView(gain.data(), DType::kF32, {kHidden}), 1e-6f);
      });
  return c;
}

}  // namespace

std::vector<VerbCase> verb_cases() {
  return {norm_case(),
          linear_case("linear", 704, 256, true),
          mla_case(true),
          attend_case(),
          mla_case(false),
          mlp_case("mlp", 256, 768, false, true),
          moe_case(),
          head_case(),
          linear_case("k2.6_q_a_kv_a", 2112, 7168, false),
          mlp_case("k2.6_expert", 7168, 2048, true, false)};
}

}  // namespace ddtree::bench
