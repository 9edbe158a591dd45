// Attention on a GPU: against the reference backend, and bit for bit against itself: a tree's node against the same
// token as committed text, in other batches, places, shared-memory sizes and with what it must not read poisoned.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "backend/cuda/attention/attend.h"
#include "backend/cuda/device_memory.h"
#include "backend/ref/ref_backend.h"
#include "base/bf16.h"
#include "support/random_experts.h"

namespace ddtree::cuda {
namespace {

constexpr int64_t kGuard = 4096;  // bytes before and after every output
constexpr uint8_t kPoison = 0xff;
// What a test runs: what the GPU has by itself, the portable kernel, and that with the shared memory of sm_120.
enum class Kernel : uint8_t { kOwn, kPortable, kSmall };
constexpr Kernel kKernels[] = {Kernel::kOwn, Kernel::kPortable, Kernel::kSmall};
constexpr int32_t kQueries = 97;  // different ones; a row's is number position mod 97

AttendSpec mla(int32_t heads) { return {AttendSpec::Mask::kTree, 0.3F, heads, 1, 576, 512, 0}; }
AttendSpec gqa(int32_t heads, int32_t kv_heads, int32_t dim, AttendSpec::Mask mask, int32_t window = 0) {
  return {mask, 0.4F, heads, kv_heads, dim, dim, window};
}
int64_t width_of(const AttendSpec& s) { return s.qk_dim != s.v_dim ? s.qk_dim : s.kv_heads * (s.qk_dim + s.v_dim); }

struct Row {
  int32_t position = 0, kv_row = 0;
  AncestorWords ancestors = {};
  int32_t query = -1;  // −1: that of its position
};

struct Rows {  // a segment
  int32_t context = 0;
  bool tree = false;
  std::vector<Row> rows;
};

template <class T>
Buffer on_device(const std::vector<T>& host) {
  Result<Buffer> buffer =
      allocate_device(std::max<int64_t>(16, static_cast<int64_t>(host.size() * sizeof(T))), "a test");
  EXPECT_TRUE(buffer.ok());
  EXPECT_EQ(cudaMemcpy(buffer->data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  return *std::move(buffer);
}

// One stream's cache: `tokens` committed keys in permuted pages, the rest of which is poisoned, then `scratch` rows.
class Cache {
 public:
  Cache(const AttendSpec& spec, int32_t tokens, int32_t scratch, uint64_t seed) : spec_(spec) {
    const int32_t pages = tokens / kChunkKeys + 2;
    pages_.resize(static_cast<size_t>(pages));
    for (int32_t i = 0; i < pages; ++i) pages_[static_cast<size_t>(i)] = i;
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937(static_cast<unsigned>(seed)));
    first_scratch_ = pages * kChunkKeys;
    rows_ = first_scratch_ + scratch;
    const auto width = static_cast<size_t>(width_of(spec));
    host_.assign(static_cast<size_t>(rows_) * width, 0x7fff);
    const std::vector<uint16_t> random = random_activations((tokens + scratch) * static_cast<int64_t>(width), seed);
    for (int32_t i = 0; i < tokens + scratch; ++i) {
      const int32_t row = i < tokens ? page_row(i) : first_scratch_ + i - tokens;
      std::copy_n(&random[static_cast<size_t>(i) * width], width, &host_[static_cast<size_t>(row) * width]);
    }
    queries_ = random_activations(int64_t{kQueries} * spec.heads * spec.qk_dim, seed + 1);
    device_ = on_device(host_);
  }

  int32_t page_row(int32_t position) const {
    return pages_[static_cast<size_t>(position / kChunkKeys)] * kChunkKeys + position % kChunkKeys;
  }
  int32_t scratch(int32_t i) const { return first_scratch_ + i; }
  const AttendSpec& spec() const { return spec_; }
  int64_t out_values() const { return int64_t{spec_.heads} * spec_.v_dim; }

  // A row's key becomes NaN, or what it was.
  void poison(int32_t row, bool on) {
    const auto width = static_cast<size_t>(width_of(spec_)), at = static_cast<size_t>(row) * width;
    const std::vector<uint16_t> nan(width, 0x7fff);
    EXPECT_EQ(cudaMemcpy(static_cast<uint16_t*>(device_.data()) + at, on ? nan.data() : &host_[at], width * 2,
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  // bf16 [rows, heads, v_dim], from poisoned buffers between guards.
  std::vector<uint16_t> run(const std::vector<Rows>& segments, Kernel kernel = Kernel::kOwn, bool whole = false) const {
    Result<AttendDevice> device = attend_device();
    EXPECT_TRUE(device.ok());
    if (kernel != Kernel::kOwn) device->wgmma = false;
    if (kernel == Kernel::kSmall) device->shared_bytes = 101376;
    EXPECT_TRUE(check_attend_spec(spec_, *device).ok());
    std::vector<AttendSegment> table;
    std::vector<int32_t> position, kv_row;
    std::vector<AncestorWords> ancestors;
    std::vector<uint16_t> q;
    const auto q_values = static_cast<size_t>(spec_.heads) * static_cast<size_t>(spec_.qk_dim);
    for (const Rows& s : segments) {
      table.push_back(
          {static_cast<int32_t>(position.size()), static_cast<int32_t>(s.rows.size()), s.context, s.tree ? 1 : 0, 0});
      for (const Row& r : s.rows) {
        position.push_back(r.position);
        kv_row.push_back(r.kv_row);
        ancestors.push_back(r.ancestors);
        const auto query = static_cast<size_t>(r.query < 0 ? r.position % kQueries : r.query);
        q.insert(q.end(), &queries_[query * q_values], &queries_[query * q_values] + q_values);
      }
    }
    const AttendPlan plan = plan_attend(spec_, *device, table, whole);
    const auto rows = static_cast<int32_t>(position.size());
    const int64_t out_bytes = rows * out_values() * 2;
    const Buffer out = guarded(out_bytes), workspace = guarded(plan.workspace_bytes);
    const Buffer d_q = on_device(q), d_position = on_device(position), d_kv = on_device(kv_row);
    const Buffer d_ancestors = on_device(ancestors), d_table = on_device(table), d_pages = on_device(pages_);
    AttendArgs args;
    args.q = d_q.data();
    args.cache = device_.data();
    args.cache_rows = rows_;
    args.position = static_cast<const int32_t*>(d_position.data());
    args.kv_row = static_cast<const int32_t*>(d_kv.data());
    args.ancestors = static_cast<const AncestorWords*>(d_ancestors.data());
    args.segments = static_cast<const AttendSegment*>(d_table.data());
    args.pages = static_cast<const int32_t*>(d_pages.data());
    args.segment_count = static_cast<int32_t>(table.size());
    args.rows = rows;
    args.out = static_cast<uint8_t*>(out.data()) + kGuard;
    args.workspace = static_cast<uint8_t*>(workspace.data()) + kGuard;
    const Status status = run_attend(spec_, plan, args, nullptr);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    expect_guards(out, out_bytes);
    expect_guards(workspace, plan.workspace_bytes);
    std::vector<uint16_t> host(static_cast<size_t>(out_bytes / 2));
    EXPECT_EQ(cudaMemcpy(host.data(), args.out, static_cast<size_t>(out_bytes), cudaMemcpyDeviceToHost), cudaSuccess);
    return host;
  }

  // The same by the reference, in float32.
  std::vector<float> reference(const std::vector<Rows>& segments) const {
    const auto widen = [](const std::vector<uint16_t>& v) {
      std::vector<float> f(v.size());
      std::transform(v.begin(), v.end(), f.begin(), [](uint16_t bits) { return bf16_to_f32(bits); });
      return f;
    };
    Batch batch;
    std::vector<float> q;
    const std::vector<float> queries = widen(queries_);
    const auto q_values = static_cast<size_t>(spec_.heads) * static_cast<size_t>(spec_.qk_dim);
    for (const Rows& s : segments) {
      batch.segments.push_back(
          {0, batch.rows(), static_cast<int32_t>(s.rows.size()), s.context, s.tree, std::span(pages_)});
      for (const Row& r : s.rows) {
        batch.token.push_back(0);
        batch.position.push_back(r.position);
        batch.kv_row.push_back(r.kv_row);
        batch.ancestors.push_back(r.ancestors);
        const auto query = static_cast<size_t>(r.query < 0 ? r.position % kQueries : r.query);
        q.insert(q.end(), &queries[query * q_values], &queries[query * q_values] + q_values);
      }
    }
    std::vector<float> cache = widen(host_), out(static_cast<size_t>(batch.rows() * out_values()));
    const std::unique_ptr<Backend> ref = make_ref_backend();
    ref->stage(batch);
    ref->attend(TensorView(out.data(), DType::kF32, {batch.rows(), spec_.heads, spec_.v_dim}),
                TensorView(q.data(), DType::kF32, {batch.rows(), spec_.heads, spec_.qk_dim}),
                TensorView(cache.data(), DType::kF32, {rows_, width_of(spec_)}), spec_);
    EXPECT_TRUE(ref->finish().ok());
    return out;
  }

 private:
  static Buffer guarded(int64_t bytes) {
    Result<Buffer> buffer = allocate_device(bytes + 2 * kGuard, "a test");
    EXPECT_TRUE(buffer.ok());
    EXPECT_EQ(cudaMemset(buffer->data(), kPoison, static_cast<size_t>(bytes + 2 * kGuard)), cudaSuccess);
    return *std::move(buffer);
  }
  static void expect_guards(const Buffer& buffer, int64_t bytes) {
    for (const int64_t at : {int64_t{0}, kGuard + bytes}) {
      std::vector<uint8_t> guard(kGuard);
      EXPECT_EQ(cudaMemcpy(guard.data(), static_cast<uint8_t*>(buffer.data()) + at, kGuard, cudaMemcpyDeviceToHost),
                cudaSuccess);
      EXPECT_TRUE(std::all_of(guard.begin(), guard.end(), [](uint8_t b) { return b == kPoison; }));
    }
  }

  AttendSpec spec_;
  std::vector<int32_t> pages_;
  std::vector<uint16_t> host_, queries_;
  Buffer device_;
  int32_t first_scratch_ = 0, rows_ = 0;
};

// --- segments ---

// Rows of committed text from `context` on, as a chunk; one row: plain decoding.
Rows chunk(const Cache& cache, int32_t context, int32_t rows) {
  Rows s{context, false, {}};
  for (int32_t p = context; p < context + rows; ++p) s.rows.push_back({p, cache.page_row(p), {}, -1});
  return s;
}

// A drafter's block, its keys in scratch rows.
Rows block(const Cache& cache, int32_t context, int32_t rows) {
  Rows s{context, false, {}};
  for (int32_t i = 0; i < rows; ++i) s.rows.push_back({context + i, cache.scratch(i), {}, -1});
  return s;
}

// A tree whose path to its deepest node is the committed text from `context` on, with other nodes between, whose keys
// are scratch rows. path[d] is the row of depth d.
struct TextTree {
  Rows segment;
  std::vector<int32_t> path, others;
};

TextTree text_tree(const Cache& cache, int32_t context, int32_t depth, int32_t others, uint64_t seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  TextTree t;
  t.segment = {context, true, {}};
  const auto add = [&](int32_t parent, int32_t kv_row, int32_t query) {
    const auto row = static_cast<int32_t>(t.segment.rows.size());
    Row r;
    if (parent >= 0) {
      r = t.segment.rows[static_cast<size_t>(parent)];
      ++r.position;
    } else {
      r.position = context;
    }
    r.kv_row = kv_row;
    r.query = query;
    r.ancestors[static_cast<size_t>(row / 64)] |= uint64_t{1} << (row % 64);
    t.segment.rows.push_back(r);
    return row;
  };
  t.path.push_back(add(-1, cache.page_row(context), -1));
  int32_t left = others;
  while (static_cast<int32_t>(t.path.size()) <= depth || left > 0) {
    const bool deeper = static_cast<int32_t>(t.path.size()) <= depth;
    if (left > 0 && (!deeper || static_cast<int32_t>(random() % static_cast<unsigned>(others + depth)) < others)) {
      const auto parent = static_cast<int32_t>(random() % t.segment.rows.size());
      if (t.segment.rows[static_cast<size_t>(parent)].position - context >= kMaxDepth) continue;
      t.others.push_back(add(parent, cache.scratch(others - left), static_cast<int32_t>(random() % kQueries)));
      --left;
    } else {
      const auto p = static_cast<int32_t>(context + static_cast<int32_t>(t.path.size()));
      t.path.push_back(add(t.path.back(), cache.page_row(p), -1));
    }
  }
  return t;
}

// --- parity ---

// Two roundings to bf16: the weights before they meet V (the sum of weights is of the rounded ones), and the output;
// each of relative error ≤ 2⁻⁹ and 1.7e-3 of the norm on average over a binade.
constexpr double kMaxError = 5e-3;

void expect_parity(const Cache& cache, const std::vector<Rows>& segments) {
  const std::vector<float> want = cache.reference(segments);
  for (const Kernel kernel : kKernels)
    for (const bool whole : {false, true}) {
      SCOPED_TRACE("kernel " + std::to_string(static_cast<int>(kernel)) + (whole ? ", whole tiles" : ""));
      const std::vector<uint16_t> got = cache.run(segments, kernel, whole);
      ASSERT_EQ(got.size(), want.size());
      const auto v = static_cast<size_t>(cache.spec().v_dim);
      double worst = 0;
      for (size_t i = 0; i < got.size(); i += v) {
        const std::vector<double> exact(&want[i], &want[i] + v);
        worst = std::max(worst, relative_error(std::span(got).subspan(i, v), exact));
      }
      EXPECT_LT(worst, kMaxError);
    }
}

TEST(AttentionTiny, Mla) {
  const Cache cache(mla(4), 200, 40, 1);
  expect_parity(cache, {chunk(cache, 100, 1), text_tree(cache, 130, 5, 6, 1).segment});
  expect_parity(cache, {chunk(cache, 0, 1), chunk(cache, 60, 9), text_tree(cache, 0, 3, 2, 2).segment});
}

TEST(AttentionTiny, Block) {
  const Cache cache(gqa(4, 2, 64, AttendSpec::Mask::kBlock), 150, 16, 2);
  expect_parity(cache, {block(cache, 0, 8), block(cache, 140, 8)});
}

TEST(Attention, MlaHeads) {
  for (const int32_t heads : {1, 3, 8, 24, 64}) {
    SCOPED_TRACE("heads " + std::to_string(heads));
    const Cache cache(mla(heads), 400, 60, static_cast<uint64_t>(heads));
    expect_parity(cache, {text_tree(cache, 300, 12, 20, 3).segment, chunk(cache, 61, 20), chunk(cache, 383, 1)});
  }
}

TEST(Attention, MlaManyHeads) {
  const Cache cache(mla(100), 100, 8, 4);
  expect_parity(cache, {text_tree(cache, 70, 2, 2, 3).segment});
}

TEST(Attention, MlaLong) {
  const Cache cache(mla(2), 20000, 300, 5);
  expect_parity(cache, {text_tree(cache, 9000, 6, 2, 1).segment, chunk(cache, 16380, 3), chunk(cache, 4100, 1)});
}

TEST(Attention, LargeTree) {
  const Cache cache(mla(2), 700, 256, 6);
  expect_parity(cache, {text_tree(cache, 620, 16, 239, 1).segment, chunk(cache, 10, 256)});
}

TEST(Attention, Gqa) {
  using enum AttendSpec::Mask;
  for (const AttendSpec& spec : {gqa(4, 2, 64, kBlock), gqa(64, 8, 128, kBlock), gqa(8, 1, 128, kBlock),
                                 gqa(64, 8, 128, kBlock, 100), gqa(8, 1, 128, kTree), gqa(6, 2, 64, kTree, 50)}) {
    SCOPED_TRACE(std::to_string(spec.heads) + " heads, window " + std::to_string(spec.window));
    const Cache cache(spec, 600, 40, 7);
    if (spec.mask == kBlock)
      expect_parity(cache, {block(cache, 500, 8), block(cache, 0, 16), block(cache, 63, 1)});
    else
      expect_parity(cache, {text_tree(cache, 500, 9, 12, 1).segment, chunk(cache, 290, 30), chunk(cache, 0, 5)});
  }
}

// --- bits ---

// Outputs of plain decoding, by position.
class Decoded {
 public:
  explicit Decoded(const Cache& cache, Kernel kernel = Kernel::kOwn) : cache_(cache), kernel_(kernel) {}

  void add(int32_t begin, int32_t end) {
    std::vector<Rows> segments;
    std::vector<int32_t> positions;
    for (int32_t p = std::max(begin, 0); p < end; ++p)
      if (!rows_.contains(p)) {
        segments.push_back(chunk(cache_, p, 1));
        positions.push_back(p);
      }
    if (segments.empty()) return;
    const std::vector<uint16_t> out = cache_.run(segments, kernel_);
    const auto n = static_cast<size_t>(cache_.out_values());
    for (size_t i = 0; i < positions.size(); ++i)
      rows_[positions[i]].assign(out.begin() + static_cast<int64_t>(i * n),
                                 out.begin() + static_cast<int64_t>((i + 1) * n));
  }
  bool equals(int32_t position, const uint16_t* row) const {
    const std::vector<uint16_t>& want = rows_.at(position);
    return std::memcmp(want.data(), row, want.size() * 2) == 0;
  }

 private:
  const Cache& cache_;
  Kernel kernel_;
  std::map<int32_t, std::vector<uint16_t>> rows_;
};

// The path nodes of trees over every context of [begin, end), all in one launch, against plain decoding.
void expect_tree_bits(const Cache& cache, int32_t begin, int32_t end, int32_t depth, int32_t others,
                      Kernel kernel = Kernel::kOwn, bool whole = false) {
  Decoded decoded(cache, kernel);
  decoded.add(begin, end + depth);
  std::vector<Rows> segments;
  std::vector<TextTree> trees;
  for (int32_t context = std::max(begin, 0); context < end; ++context) {
    trees.push_back(text_tree(cache, context, depth, others, static_cast<uint64_t>(context)));
    segments.push_back(trees.back().segment);
  }
  const std::vector<uint16_t> out = cache.run(segments, kernel, whole);
  const auto n = static_cast<size_t>(cache.out_values());
  size_t row = 0, different = 0;
  int32_t first = -1;
  for (const TextTree& t : trees) {
    for (const int32_t node : t.path) {
      const int32_t position = t.segment.rows[static_cast<size_t>(node)].position;
      if (!decoded.equals(position, &out[(row + static_cast<size_t>(node)) * n])) {
        ++different;
        if (first < 0) first = position;
      }
    }
    row += t.segment.rows.size();
  }
  EXPECT_EQ(different, 0u) << "contexts " << begin << " … " << end - 1 << ", first at position " << first;
}

TEST(Attention, NodesAreCommittedText) {
  for (const int32_t heads : {4, 8, 64}) {
    const Cache cache(mla(heads), 1200, 256, 11);
    for (int32_t begin = 0; begin < 192; begin += 32) expect_tree_bits(cache, begin, begin + 32, 16, 5);
    expect_tree_bits(cache, 1000, 1064, 16, 30, Kernel::kOwn, true);
  }
}

TEST(Attention, NodesOfLargeTreesAreCommittedText) {
  for (const int32_t heads : {1, 8, 12}) {
    const Cache cache(mla(heads), 400, 256, 12);
    for (const int32_t begin : {3, 57, 63, 120, 250}) expect_tree_bits(cache, begin, begin + 2, 16, 200);
  }
}

TEST(Attention, NodesAreCommittedTextInPortableKernels) {
  const Cache cache(mla(8), 400, 256, 13);
  expect_tree_bits(cache, 40, 136, 16, 5, Kernel::kPortable);
  expect_tree_bits(cache, 100, 104, 16, 100, Kernel::kPortable);
  for (int32_t begin = 0; begin < 128; begin += 32) expect_tree_bits(cache, begin, begin + 32, 16, 5, Kernel::kSmall);
  expect_tree_bits(cache, 100, 104, 16, 100, Kernel::kSmall);
}

TEST(Attention, NodesAreCommittedTextAtEverySplitBorder) {
  const Cache cache(mla(8), 131072 + 64, 8, 14);
  for (int32_t border = split_keys(0); border <= 131072; border += split_keys(bucket_of(border + 1)))
    expect_tree_bits(cache, border - 17, border + 2, 16, 3);
}

TEST(Attention, GqaNodesAreCommittedText) {
  const Cache cache(gqa(8, 1, 128, AttendSpec::Mask::kTree, 150), 500, 64, 15);
  for (int32_t begin = 0; begin < 320; begin += 32) expect_tree_bits(cache, begin, begin + 32, 16, 5);
}

// Chunks of all sizes, in any company, give the bits of plain decoding.
TEST(Attention, ChunksAreCommittedText) {
  const Cache cache(mla(8), 1400, 64, 16);
  Decoded decoded(cache);
  decoded.add(0, 40), decoded.add(500, 756), decoded.add(1279, 1290);
  std::vector<Rows> segments = {chunk(cache, 500, 256), text_tree(cache, 700, 7, 12, 1).segment, chunk(cache, 0, 40),
                                chunk(cache, 1279, 11), chunk(cache, 510, 3)};
  std::mt19937 random(3);
  for (int i = 0; i < 4; ++i) {
    std::shuffle(segments.begin(), segments.end(), random);
    const std::vector<uint16_t> out = cache.run(segments, Kernel::kOwn, i % 2 == 1);
    const auto n = static_cast<size_t>(cache.out_values());
    size_t row = 0;
    for (const Rows& s : segments)
      for (const Row& r : s.rows) {
        EXPECT_TRUE(s.tree || decoded.equals(r.position, &out[row * n])) << r.position;
        ++row;
      }
  }
}

// Either kernel gives the same bits, with any tile height.
TEST(Attention, KernelsAgree) {
  const Cache cache(mla(8), 9000, 64, 18);
  const std::vector<Rows> segments = {text_tree(cache, 8888, 9, 12, 1).segment, chunk(cache, 4090, 9),
                                      chunk(cache, 700, 1)};
  const std::vector<uint16_t> base = cache.run(segments);
  EXPECT_EQ(cache.run(segments, Kernel::kPortable), base);
  EXPECT_EQ(cache.run(segments, Kernel::kSmall), base);
}

// NaN in the keys of nodes that aren't ancestors changes nothing.
TEST(AttentionTiny, NanStaysInItsBranch) {
  Cache cache(mla(8), 200, 40, 17);
  const TextTree t = text_tree(cache, 125, 9, 20, 5);
  const std::vector<uint16_t> base = cache.run({t.segment});
  for (size_t i = 0; i < t.others.size(); ++i) cache.poison(cache.scratch(static_cast<int32_t>(i)), true);
  const std::vector<uint16_t> out = cache.run({t.segment});
  const auto n = static_cast<size_t>(cache.out_values());
  for (const int32_t node : t.path)
    EXPECT_EQ(std::memcmp(&out[static_cast<size_t>(node) * n], &base[static_cast<size_t>(node) * n], n * 2), 0) << node;
  for (const int32_t node : t.others) EXPECT_TRUE(std::isnan(bf16_to_f32(out[static_cast<size_t>(node) * n])));
}

// --- the cut into work ---

TEST(AttentionWork, SplitsAreAFunctionOfTheKeys) {
  for (const int32_t keys : {1, 128, 129, 4096, 4097, 16384, 16385, 65536, 65537, 1 << 20}) {
    const Tiling tiling = make_tiling(8, 1, 64);
    const SegmentWork work = segment_work({0, 1, keys - 1, 1, 0}, tiling, false, false);
    const int32_t bucket = bucket_of(keys);
    EXPECT_EQ(work.first_bucket, bucket);
    EXPECT_EQ(work.last_bucket, bucket);
    EXPECT_EQ(work.items(), (keys + split_keys(bucket) - 1) / split_keys(bucket));
    EXPECT_LE(keys, bucket_keys(bucket));
    if (bucket > 0) {
      EXPECT_GT(keys, bucket_keys(bucket - 1));
      EXPECT_EQ(bucket_keys(bucket - 1) % split_keys(bucket), 0);
    }
  }
}

TEST(AttentionWork, RefusesWhatItCannotRun) {
  const AttendDevice device{132, 232448};
  EXPECT_TRUE(check_attend_spec(mla(3), device).ok());
  EXPECT_FALSE(check_attend_spec(gqa(8, 2, 96, AttendSpec::Mask::kTree), device).ok());
  EXPECT_FALSE(check_attend_spec(gqa(7, 2, 64, AttendSpec::Mask::kTree), device).ok());
  EXPECT_FALSE(check_attend_spec(mla(0), device).ok());
  EXPECT_FALSE(check_attend_spec(mla(8), {132, 65536}).ok());
}

}  // namespace
}  // namespace ddtree::cuda
