#include "backend/cpu/attention.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/checked.h"

namespace ddtree::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Fewer tiles than this per thread are split by keys and by values, so that no thread is left without work.
constexpr int64_t kTilesPerThread = 4;
constexpr int32_t kWaveChunks = 32;
constexpr int32_t kKeyUnit = 4;     // keys that scores() takes together
constexpr int64_t kValueUnit = 64;  // values that mix() takes together

// Adds a chunk's (max, sum) to the running ones and says how to weigh the two values: alpha · old + beta · new.
void fold_sums(float& max, float& sum, float chunk_max, float chunk_sum, float* alpha, float* beta) {
  const bool above = chunk_max > max;
  *alpha = above ? std::exp(max - chunk_max) : 1.0f;
  *beta = above ? 1.0f : std::exp(chunk_max - max);
  sum = sum * *alpha + chunk_sum * *beta;
  if (above) max = chunk_max;
}

}  // namespace

struct Attention::Pass {
  const Tile& tile;
  const Keys& keys;
  int32_t row, rows;   // of the tile
  int32_t begin, end;  // places, within one chunk

  int32_t first_query() const { return row * tile.heads; }
  int32_t queries() const { return rows * tile.heads; }
};

struct Attention::Wave {
  int32_t begin, end;  // chunks
  bool first, last;

  int32_t chunks() const { return end - begin; }
  // Of a tile's chunks, those in this wave.
  int32_t begin_of(const Tile& tile) const { return std::max(begin, tile.first_chunk()); }
  int32_t end_of(const Tile& tile) const { return std::min(end, tile.chunks()); }
  size_t index(size_t tile, int32_t chunk) const {
    return tile * static_cast<size_t>(chunks()) + static_cast<size_t>(chunk - begin);
  }
};

void Attention::plan(const Batch& batch, const AttendSpec& spec) {
  if (planned_ && spec.mask == spec_.mask && spec.window == spec_.window && spec.heads == spec_.heads &&
      spec.kv_heads == spec_.kv_heads)
    return;
  keys_.assign(static_cast<size_t>(batch.rows()), {});
  own_.clear();
  tiles_.clear();
  // Rows hold pointers into own_: it must not move while they are made.
  size_t own = 0;
  for (const Segment& s : batch.segments)
    if (s.tree)
      for (int32_t r = s.first_row; r < s.first_row + s.rows; ++r)
        for (uint64_t word : batch.ancestors[static_cast<size_t>(r)]) own += static_cast<size_t>(std::popcount(word));
  own_.reserve(own);
  for (const Segment& segment : batch.segments) list_keys(batch, segment, spec);
  for (const Segment& segment : batch.segments) list_tiles(segment, spec);
  spec_ = spec;
  planned_ = true;
}

void Attention::list_keys(const Batch& batch, const Segment& s, const AttendSpec& spec) {
  const bool by_ancestors = s.tree && spec.mask == AttendSpec::Mask::kTree;
  const auto position = [&](int32_t row) { return batch.position[static_cast<size_t>(s.first_row + row)]; };
  for (int32_t r = 0; r < s.rows; ++r) {
    Keys& keys = keys_[static_cast<size_t>(s.first_row + r)];
    const int64_t oldest =
        spec.window == 0 ? std::numeric_limits<int64_t>::min() : int64_t{position(r)} - (spec.window - 1);
    int32_t outside = 0;  // own rows before the window; positions ascend along them
    if (by_ancestors) {
      const AncestorWords& words = batch.ancestors[static_cast<size_t>(s.first_row + r)];
      const size_t begin = own_.size();
      for (int32_t w = 0; w < kAncestorWords; ++w)
        for (uint64_t bits = words[static_cast<size_t>(w)]; bits != 0; bits &= bits - 1) {
          const int32_t other = w * 64 + std::countr_zero(bits);
          outside += position(other) < oldest;
          own_.push_back(batch.kv_row[static_cast<size_t>(s.first_row + other)]);
        }
      keys.own = own_.data() + begin;
      keys.count = s.context + static_cast<int32_t>(own_.size() - begin);
    } else {
      const int32_t seen = spec.mask == AttendSpec::Mask::kBlock ? s.rows : r + 1;
      while (outside < seen && position(outside) < oldest) ++outside;
      keys.own = batch.kv_row.data() + s.first_row;
      keys.count = s.context + seen;
    }
    const auto first = static_cast<int32_t>(std::clamp<int64_t>(oldest, 0, s.context));
    keys.first = first < s.context ? first : s.context + outside;
  }
}

void Attention::list_tiles(const Segment& s, const AttendSpec& spec) {
  const int32_t group = spec.heads / spec.kv_heads;
  const int32_t head_tiles = static_cast<int32_t>(ceil_div(group, kTileQueries));
  const int32_t tile_rows = std::max(1, kTileQueries / static_cast<int32_t>(ceil_div(group, head_tiles)));
  const int32_t row_tiles = static_cast<int32_t>(ceil_div(s.rows, tile_rows));
  for (int32_t rt = 0; rt < row_tiles; ++rt) {
    const int32_t row = s.rows * rt / row_tiles, end = s.rows * (rt + 1) / row_tiles;
    Tile tile;
    tile.segment = &s;
    tile.row = s.first_row + row;
    tile.rows = end - row;
    const std::span<const Keys> keys(keys_.data() + tile.row, static_cast<size_t>(tile.rows));
    const auto [low_first, high_first] = std::ranges::minmax_element(keys, {}, &Keys::first);
    const auto [low_count, high_count] = std::ranges::minmax_element(keys, {}, &Keys::count);
    tile.min_first = low_first->first;
    tile.max_first = high_first->first;
    tile.min_count = low_count->count;
    tile.max_count = high_count->count;
    const bool same_list = tile.rows == 1 || keys.front().own == keys.back().own;
    tile.common = same_list ? tile.max_count : s.context;
    for (int32_t kv = 0; kv < spec.kv_heads; ++kv)
      for (int32_t ht = 0; ht < head_tiles; ++ht) {
        const int32_t head = group * ht / head_tiles;
        tile.kv_head = kv;
        tile.head = kv * group + head;
        tile.heads = group * (ht + 1) / head_tiles - head;
        tiles_.push_back(tile);
      }
  }
}

void Attention::run(const Batch& batch, TensorView out, TensorView q, KvLayer cache, const AttendSpec& spec) {
  plan(batch, spec);
  const int64_t width = cache.row_elements();
  const int64_t keys_width = int64_t{spec.kv_heads} * spec.qk_dim;
  const bool latent = width == spec.qk_dim && spec.kv_heads == 1;
  CHECK_EQ(width, latent ? spec.qk_dim : keys_width + int64_t{spec.kv_heads} * spec.v_dim);
  CHECK_LE(latent ? spec.v_dim : 0, spec.qk_dim);
  CHECK_EQ(spec.heads % spec.kv_heads, 0);
  CHECK(spec.scale > 0);
  const Call call = {batch, out, q, cache, spec, latent ? 0 : keys_width};
  int64_t work = 0;
  for (const Tile& t : tiles_) work += int64_t{t.queries()} * t.max_count * (spec.qk_dim + spec.v_dim);
  const int64_t threads = runner_.threads();
  if (threads == 1 || static_cast<int64_t>(tiles_.size()) >= kTilesPerThread * threads)
    run_tiles(call, work);
  else
    run_waves(call, work);
}

// Calls f(pass) for the tile's rows and their keys at places [low, high) of one chunk: all rows together where they see
// the same keys, else row by row.
template <class F>
void Attention::for_passes(const Tile& tile, int32_t low, int32_t high, F f) const {
  const Keys* keys = keys_.data() + tile.row;
  const bool same_begin = low >= tile.max_first || tile.min_first == tile.max_first;
  const bool same_end = high <= tile.min_count || tile.min_count == tile.max_count;
  const int32_t end = std::min(high, tile.max_count);
  const auto call = [&](const Keys& k, int32_t row, int32_t rows) {
    const Pass pass = {tile, k, row, rows, std::max(low, k.first), std::min(high, k.count)};
    if (pass.begin < pass.end) f(pass);
  };
  if (same_begin && same_end && end <= tile.common) return call(keys[0], 0, tile.rows);
  for (int32_t r = 0; r < tile.rows; ++r) call(keys[r], r, 1);
}

// Enough tiles for all threads: each tile is one thread's, from its first chunk to its last.
void Attention::run_tiles(const Call& call, int64_t work) {
  const auto cost = [](const Tile& t) { return int64_t{t.queries()} * (t.max_count - t.min_first + kChunk); };
  int64_t total = 0;
  for (const Tile& t : tiles_) total += cost(t);
  runner_.run(work, [&](Part part) {
    Thread& thread = threads_[static_cast<size_t>(part.index)];
    const KernelTable& kernels = runner_.kernels();
    int64_t before = 0;
    for (const Tile& tile : tiles_) {
      const bool mine = before >= part.begin(total) && before < part.end(total);
      before += cost(tile);
      if (!mine) continue;
      Running running;
      for (int32_t i = 0; i < tile.queries(); ++i) open(running, i, output(call, tile, i), call.spec.v_dim);
      for (int32_t c = tile.first_chunk(); c < tile.chunks(); ++c)
        for_passes(tile, c * kChunk, (c + 1) * kChunk, [&](const Pass& p) {
          float* scores = thread.scores + p.first_query() * kChunk;
          if (p.end - p.begin < kChunk) std::fill_n(scores, p.queries() * kChunk, kLowest);
          score(call, p, thread, thread.scores);
          for (int32_t i = p.first_query(); i < p.first_query() + p.queries(); ++i) {
            float max, sum;
            kernels.softmax(thread.scores + i * kChunk, call.spec.scale, &max, &sum);
            fold_sums(running.max[i], running.sum[i], max, sum, &thread.alpha[i], &thread.beta[i]);
          }
          mix(call, p, thread, thread.scores, 0, call.spec.v_dim);
        });
      for (int32_t i = 0; i < tile.queries(); ++i) {
        float* out = output(call, tile, i);
        kernels.scale(out, out, 1.0f / running.sum[i], call.spec.v_dim);
      }
    }
  });
}

// Few tiles: in waves, the threads share out the keys to score, then the chunks to normalise, then the values to mix.
void Attention::run_waves(const Call& call, int64_t work) {
  int32_t first = std::numeric_limits<int32_t>::max(), last = 0;
  for (const Tile& t : tiles_) {
    first = std::min(first, t.first_chunk());
    last = std::max(last, t.chunks());
  }
  const size_t most = tiles_.size() * static_cast<size_t>(std::min(kWaveChunks, std::max(0, last - first)));
  running_.resize(tiles_.size() * threads_.size());
  chunks_.resize(most);
  scores_.grow(static_cast<int64_t>(most) * kTileQueries * kChunk);
  for (int32_t begin = first; begin < last; begin += kWaveChunks) {
    const int32_t end = std::min(begin + kWaveChunks, last);
    const Wave wave = {begin, end, begin == first, end == last};
    runner_.run(
        work * wave.chunks() / (last - first), [&](Part part) { score_wave(call, wave, part); },
        [&](Part part) { normalise_wave(call, wave, part); }, [&](Part part) { mix_wave(call, wave, part); });
  }
}

// The part's share of all tiles' keys, in units of kKeyUnit.
void Attention::score_wave(const Call& call, const Wave& wave, Part part) {
  const auto first_unit = [&](const Tile& t) { return std::max(wave.begin * kChunk, t.min_first) / kKeyUnit; };
  const auto units = [&](const Tile& t) {
    const int64_t end = ceil_div(std::min(wave.end * kChunk, t.max_count), kKeyUnit);
    return std::max<int64_t>(0, end - first_unit(t));
  };
  int64_t total = 0, before = 0;
  for (const Tile& t : tiles_) total += units(t);
  for (size_t t = 0; t < tiles_.size(); ++t) {
    const Tile& tile = tiles_[t];
    const int64_t n = units(tile), at = first_unit(tile) - before;
    const int64_t begin = at + std::clamp(part.begin(total), before, before + n);
    const int64_t end = at + std::clamp(part.end(total), before, before + n);
    before += n;
    for (int64_t low = begin * kKeyUnit, high; low < end * kKeyUnit; low = high) {
      high = std::min((low / kChunk + 1) * kChunk, end * kKeyUnit);
      float* scores = scores_.data() +
                      static_cast<int64_t>(wave.index(t, static_cast<int32_t>(low / kChunk))) * kTileQueries * kChunk;
      for_passes(tile, static_cast<int32_t>(low), static_cast<int32_t>(high),
                 [&](const Pass& p) { score(call, p, threads_[static_cast<size_t>(part.index)], scores); });
    }
  }
}

// Every part.count-th (tile, chunk, query).
void Attention::normalise_wave(const Call& call, const Wave& wave, Part part) {
  int64_t turn = 0;
  for (size_t t = 0; t < tiles_.size(); ++t) {
    const Tile& tile = tiles_[t];
    for (int32_t c = wave.begin_of(tile); c < wave.end_of(tile); ++c)
      for (int32_t i = 0; i < tile.queries(); ++i) {
        if (turn++ % part.count != part.index) continue;
        const size_t at = wave.index(t, c);
        float* scores = scores_.data() + (static_cast<int64_t>(at) * kTileQueries + i) * kChunk;
        const Keys& keys = keys_[static_cast<size_t>(tile.row + i / tile.heads)];
        const int32_t begin = std::clamp(keys.first - c * kChunk, 0, kChunk);
        const int32_t end = std::clamp(keys.count - c * kChunk, begin, kChunk);
        std::fill_n(scores, begin, kLowest);
        std::fill(scores + end, scores + kChunk, kLowest);
        if (begin < end)  // else nobody will ask
          runner_.kernels().softmax(scores, call.spec.scale, &chunks_[at].max[i], &chunks_[at].sum[i]);
      }
  }
}

// The part's share of all tiles' values, in units of kValueUnit. Whoever has some of a tile adds up its sums alike.
void Attention::mix_wave(const Call& call, const Wave& wave, Part part) {
  Thread& thread = threads_[static_cast<size_t>(part.index)];
  const int64_t units = ceil_div(call.spec.v_dim, kValueUnit), total = units * std::ssize(tiles_);
  for (size_t t = 0; t < tiles_.size(); ++t) {
    const int64_t before = static_cast<int64_t>(t) * units;
    const int64_t first = (std::clamp(part.begin(total), before, before + units) - before) * kValueUnit;
    const int64_t end =
        std::min<int64_t>(call.spec.v_dim, (std::clamp(part.end(total), before, before + units) - before) * kValueUnit);
    if (first >= end) continue;
    const Tile& tile = tiles_[t];
    Running& running = running_[static_cast<size_t>(part.index) * tiles_.size() + t];
    for (int32_t i = 0; wave.first && i < tile.queries(); ++i)
      open(running, i, output(call, tile, i) + first, end - first);
    for (int32_t c = wave.begin_of(tile); c < wave.end_of(tile); ++c) {
      const size_t at = wave.index(t, c);
      const float* scores = scores_.data() + static_cast<int64_t>(at) * kTileQueries * kChunk;
      for_passes(tile, c * kChunk, (c + 1) * kChunk, [&](const Pass& p) {
        for (int32_t i = p.first_query(); i < p.first_query() + p.queries(); ++i)
          fold_sums(running.max[i], running.sum[i], chunks_[at].max[i], chunks_[at].sum[i], &thread.alpha[i],
                    &thread.beta[i]);
        mix(call, p, thread, scores, first, end - first);
      });
    }
    for (int32_t i = 0; wave.last && i < tile.queries(); ++i) {
      float* out = output(call, tile, i) + first;
      runner_.kernels().scale(out, out, 1.0f / running.sum[i], end - first);
    }
  }
}

// No keys seen yet.
void Attention::open(Running& running, int32_t query, float* out, int64_t dims) {
  running.max[query] = kLowest;
  running.sum[query] = 0;
  std::fill_n(out, dims, 0.0f);
}

// Where the pass's keys (or values, by `column`) are.
const float* const* Attention::list_rows(const Call& call, const Pass& p, int64_t column, Thread& thread) {
  const Segment& s = *p.tile.segment;
  const float* base = call.cache.as<float>() + column;
  const int64_t stride = call.cache.row_stride;
  for (int32_t place = p.begin; place < p.end; ++place) {
    const int64_t row = place < s.context
                            ? int64_t{s.pages[static_cast<size_t>(place / kPageRows)]} * kPageRows + place % kPageRows
                            : p.keys.own[place - s.context];
    thread.rows[place - p.begin] = base + row * stride;
  }
  return thread.rows;
}

// To scores [queries of the tile, kChunk].
void Attention::score(const Call& call, const Pass& p, Thread& thread, float* scores) {
  const AttendSpec& spec = call.spec;
  for (int32_t i = 0; i < p.queries(); ++i)
    thread.query[i] = call.q.row<float>(p.tile.row + p.row + i / p.tile.heads) +
                      int64_t{p.tile.head + i % p.tile.heads} * spec.qk_dim;
  const float* const* keys = list_rows(call, p, int64_t{p.tile.kv_head} * spec.qk_dim, thread);
  runner_.kernels().scores(thread.query, p.queries(), keys, p.end - p.begin, spec.qk_dim,
                           scores + p.first_query() * kChunk + p.begin % kChunk);
}

// Values [first, first + dims) of the pass's keys, weighted, to the outputs. The thread's alpha and beta are set.
void Attention::mix(const Call& call, const Pass& p, Thread& thread, const float* scores, int64_t first, int64_t dims) {
  const int32_t query = p.first_query();
  for (int32_t i = 0; i < p.queries(); ++i) thread.state[i] = output(call, p.tile, query + i) + first;
  const int64_t column = call.value_at + int64_t{p.tile.kv_head} * call.spec.v_dim + first;
  const float* const* values = list_rows(call, p, column, thread);
  runner_.kernels().mix(scores + query * kChunk + p.begin % kChunk, p.queries(), values, p.end - p.begin, dims,
                        thread.alpha + query, thread.beta + query, thread.state);
}

float* Attention::output(const Call& call, const Tile& tile, int32_t query) {
  return call.out.row<float>(tile.row + query / tile.heads) + int64_t{tile.head + query % tile.heads} * call.spec.v_dim;
}

}  // namespace ddtree::cpu
