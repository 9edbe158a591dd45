#include "backend/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"

namespace ddtree::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
// Fewer tiles than this per thread are split by chunks as well, so that no thread is left without work.
constexpr int64_t kTilesPerThread = 4;
constexpr int64_t kChunksPerThread = 8;
constexpr int64_t kPairsPerThread = 2;
constexpr int32_t kFewestQueries = 2;  // in a tile: with one, loading keys takes longer than multiplying

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
  const int32_t queries = tile_queries(batch, spec);
  for (const Segment& segment : batch.segments) list_tiles(segment, spec, queries);
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

// Large tiles reuse a chunk's keys best, but every thread needs some (tile, chunk) pairs.
int32_t Attention::tile_queries(const Batch& batch, const AttendSpec& spec) const {
  const int64_t group = spec.heads / spec.kv_heads, threads = runner_.threads();
  int32_t queries = kTileQueries;
  for (; threads > 1 && queries > kFewestQueries; queries /= 2) {
    const int64_t heads = std::min<int64_t>(group, queries);
    int64_t pairs = 0;
    for (const Segment& s : batch.segments)
      pairs += spec.kv_heads * ceil_div(group, heads) * ceil_div(s.rows, queries / heads) *
               ceil_div(s.context + s.rows, kChunk);
    if (pairs >= kPairsPerThread * threads) break;
  }
  return queries;
}

void Attention::list_tiles(const Segment& s, const AttendSpec& spec, int32_t queries) {
  const int32_t group = spec.heads / spec.kv_heads;
  const int32_t head_tiles = static_cast<int32_t>(ceil_div(group, queries));
  const int32_t tile_rows = std::max(1, queries / static_cast<int32_t>(ceil_div(group, head_tiles)));
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

// No keys seen yet; values at `values` [queries, v_dim].
void Attention::clear(const Tile& tile, State& state, float* values, int64_t v_dim) {
  std::memset(values, 0, static_cast<size_t>(tile.queries() * v_dim) * sizeof(float));
  for (int32_t i = 0; i < tile.queries(); ++i) {
    state.max[i] = kLowest;
    state.sum[i] = 0;
    state.value[i] = values + i * v_dim;
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
    run_chunks(call);
}

// Enough tiles for all threads: each tile is one thread's, from its first chunk to its last.
void Attention::run_tiles(const Call& call, int64_t work) {
  const auto cost = [](const Tile& t) { return int64_t{t.queries()} * (t.max_count - t.min_first + kChunk); };
  int64_t total = 0;
  for (const Tile& t : tiles_) total += cost(t);
  runner_.shares(work, [&](int64_t share, int64_t count) {
    Thread& thread = threads_[static_cast<size_t>(share)];
    const int64_t v_dim = call.spec.v_dim;
    float* values = thread.values.grow(kTileQueries * v_dim);
    int64_t before = 0;
    for (const Tile& tile : tiles_) {
      const bool mine = before >= total * share / count && before < total * (share + 1) / count;
      before += cost(tile);
      if (!mine) continue;
      State state;
      clear(tile, state, values, v_dim);
      for (int32_t c = tile.first_chunk(); c < tile.chunks(); ++c) chunk(call, tile, c, thread, state, true);
      for (int32_t i = 0; i < tile.queries(); ++i) store(call, tile, i, state);
    }
  });
}

// Few tiles: in waves, the threads reduce a run of chunks of every tile side by side.
void Attention::run_chunks(const Call& call) {
  const int64_t v_dim = call.spec.v_dim, threads = runner_.threads();
  const auto tiles = static_cast<int64_t>(tiles_.size());
  int32_t first = std::numeric_limits<int32_t>::max(), last = 0;
  for (const Tile& t : tiles_) {
    first = std::min(first, t.first_chunk());
    last = std::max(last, t.chunks());
  }
  const auto wave = static_cast<int32_t>(ceil_div(kChunksPerThread * threads, std::max<int64_t>(tiles, 1)));
  states_.resize(static_cast<size_t>(tiles));
  partials_.resize(static_cast<size_t>(tiles * wave));
  float* state_values = state_values_.grow(tiles * kTileQueries * v_dim);
  float* partial_values = partial_values_.grow(tiles * wave * kTileQueries * v_dim);
  for (int64_t t = 0; t < tiles; ++t)
    clear(tiles_[static_cast<size_t>(t)], states_[static_cast<size_t>(t)], state_values + t * kTileQueries * v_dim,
          v_dim);
  for (int32_t begin = first; begin < last; begin += wave) {
    const int32_t chunks = std::min(wave, last - begin);
    int64_t queries = 0;
    for (const Tile& t : tiles_) queries += t.queries();
    const int64_t work = queries * chunks * kChunk * (call.spec.qk_dim + v_dim);
    left_.assign(static_cast<size_t>(tiles), chunks);
    runner_.shares(work, [&](int64_t share, int64_t count) {
      const int64_t units = tiles * chunks;
      for (int64_t u = units * share / count; u < units * (share + 1) / count; ++u) {
        const auto t = static_cast<size_t>(u / chunks);
        State& partial = partials_[static_cast<size_t>(u)];
        for (int32_t i = 0; i < tiles_[t].queries(); ++i) {
          partial.sum[i] = 0;
          partial.value[i] = partial_values + (u * kTileQueries + i) * v_dim;
        }
        const int32_t c = begin + static_cast<int32_t>(u % chunks);
        if (c >= tiles_[t].first_chunk() && c < tiles_[t].chunks())
          chunk(call, tiles_[t], c, threads_[static_cast<size_t>(share)], partial, false);
        // Whoever finishes a tile's last chunk of the wave folds them all; their order does not depend on who it is.
        if (std::atomic_ref(left_[t]).fetch_sub(1, std::memory_order_acq_rel) == 1)
          fold(call, t, chunks, begin + chunks == last);
      }
    });
  }
}

// Adds a tile's chunks of a wave to its state, in order.
void Attention::fold(const Call& call, size_t tile, int32_t chunks, bool last) {
  State& state = states_[tile];
  for (int32_t i = 0; i < tiles_[tile].queries(); ++i) {
    for (int32_t c = 0; c < chunks; ++c) {
      const State& partial = partials_[tile * static_cast<size_t>(chunks) + static_cast<size_t>(c)];
      if (partial.sum[i] == 0) continue;  // no keys in this chunk
      float alpha, beta;
      fold_sums(state.max[i], state.sum[i], partial.max[i], partial.sum[i], &alpha, &beta);
      runner_.kernels().fold(state.value[i], partial.value[i], alpha, beta, call.spec.v_dim);
    }
    if (last) store(call, tiles_[tile], i, state);
  }
}

// One chunk of all rows of a tile: together where they see the same keys of it, else row by row.
void Attention::chunk(const Call& call, const Tile& tile, int32_t chunk, Thread& thread, State& state, bool fold) {
  const int32_t low = chunk * kChunk, high = low + kChunk;
  const Keys* keys = keys_.data() + tile.row;
  const bool same_begin = low >= tile.max_first || tile.min_first == tile.max_first;
  const bool same_end = high <= tile.min_count || tile.min_count == tile.max_count;
  const int32_t end = std::min(high, tile.max_count);
  if (same_begin && same_end && end <= tile.common) {
    pass(call, {tile, keys[0], 0, tile.rows, std::max(low, tile.max_first), end}, thread, state, fold);
    return;
  }
  for (int32_t r = 0; r < tile.rows; ++r)
    pass(call, {tile, keys[r], r, 1, std::max(low, keys[r].first), std::min(high, keys[r].count)}, thread, state, fold);
}

void Attention::pass(const Call& call, const Pass& p, Thread& thread, State& state, bool fold) {
  const int32_t n = p.end - p.begin;
  if (n <= 0) return;
  const KernelTable& kernels = runner_.kernels();
  const AttendSpec& spec = call.spec;
  const Segment& s = *p.tile.segment;
  const float* key[kChunk];
  const float* value[kChunk];
  for (int32_t i = 0; i < n; ++i) {
    const int32_t place = p.begin + i;
    const int64_t row = place < s.context
                            ? int64_t{s.pages[static_cast<size_t>(place / kPageRows)]} * kPageRows + place % kPageRows
                            : p.keys.own[place - s.context];
    const float* base = call.cache.row<float>(row);
    key[i] = base + int64_t{p.tile.kv_head} * spec.qk_dim;
    value[i] = base + call.value_at + int64_t{p.tile.kv_head} * spec.v_dim;
  }
  const int32_t queries = p.rows * p.tile.heads, first = p.row * p.tile.heads;
  const float* query[kTileQueries];
  for (int32_t i = 0; i < queries; ++i)
    query[i] = call.q.row<float>(p.tile.row + p.row + i / p.tile.heads) +
               int64_t{p.tile.head + i % p.tile.heads} * spec.qk_dim;
  if (n < kChunk) std::fill_n(thread.scores, queries * kChunk, kLowest);
  kernels.scores(query, queries, key, n, spec.qk_dim, thread.scores + p.begin % kChunk);
  for (int32_t i = 0; i < queries; ++i) {
    float max, sum;
    kernels.softmax(thread.scores + i * kChunk, spec.scale, &max, &sum);
    if (fold) {
      fold_sums(state.max[first + i], state.sum[first + i], max, sum, &thread.alpha[i], &thread.beta[i]);
    } else {
      state.max[first + i] = max;
      state.sum[first + i] = sum;
    }
  }
  kernels.mix(thread.scores + p.begin % kChunk, queries, value, n, spec.v_dim, fold ? thread.alpha : nullptr,
              thread.beta, state.value + first);
}

void Attention::store(const Call& call, const Tile& tile, int32_t query, const State& state) {
  float* out =
      call.out.row<float>(tile.row + query / tile.heads) + int64_t{tile.head + query % tile.heads} * call.spec.v_dim;
  runner_.kernels().scale(out, state.value[query], 1.0f / state.sum[query], call.spec.v_dim);
}

}  // namespace ddtree::cpu
