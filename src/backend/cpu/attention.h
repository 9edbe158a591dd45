// Attention of the staged rows over their caches, MLA (all heads share one latent key) and GQA alike.
// The key at place j of a row's sequence sits in slot j mod 64 of chunk j / 64, wherever the row is computed: each
// chunk is reduced on its own and folded into the row's state in ascending order. So a row's bits depend on its keys
// alone, not on how rows share chunks, on the order of the work, or on the threads.
#pragma once

#include <vector>

#include "backend/backend.h"
#include "backend/cpu/gemm.h"

namespace ddtree::cpu {

class Attention {
 public:
  explicit Attention(GemmRunner& runner) : runner_(runner), threads_(static_cast<size_t>(runner.threads())) {}

  // A new batch: what was planned for the last one is void.
  void stage() { planned_ = false; }
  void run(const Batch& batch, TensorView out, TensorView q, KvLayer cache, const AttendSpec& spec);

 private:
  // The keys of one row: places [first, count) of its sequence; those before the context's end lie in the stream's
  // pages, the others in the cache rows own[place − context].
  struct Keys {
    int32_t first = 0, count = 0;
    const int32_t* own = nullptr;
  };
  // Queries that one thread computes together: consecutive rows of a segment × heads of one key head.
  struct Tile {
    const Segment* segment = nullptr;
    int32_t row = 0, rows = 0;    // of the batch
    int32_t head = 0, heads = 0;  // query heads
    int32_t kv_head = 0;
    int32_t min_first = 0, max_first = 0, min_count = 0, max_count = 0;  // of its rows' keys
    int32_t common = 0;  // places below this are the same cache rows for all its rows that see them

    int32_t queries() const { return rows * heads; }
    int32_t first_chunk() const { return min_first / kChunk; }
    int32_t chunks() const { return (max_count + kChunk - 1) / kChunk; }
  };
  // Per query of a tile: the softmax's maximum and sum over the chunks so far.
  struct Running {
    float max[kTileQueries];
    float sum[kTileQueries];
  };
  struct Pass;  // rows of a tile that see the same keys of a chunk
  struct Wave;  // a run of chunks of every tile
  struct Call {
    const Batch& batch;
    TensorView out, q;
    KvLayer cache;
    const AttendSpec& spec;
    int64_t value_at;  // of key head 0's values in a cache row
  };
  struct Thread {
    float scores[kTileQueries * kChunk];
    float alpha[kTileQueries], beta[kTileQueries];
    const float* rows[kChunk];  // keys or values
    const float* query[kTileQueries];
    float* state[kTileQueries];
  };

  void plan(const Batch& batch, const AttendSpec& spec);
  void list_keys(const Batch& batch, const Segment& segment, const AttendSpec& spec);
  void list_tiles(const Segment& segment, const AttendSpec& spec);
  template <class F>
  void for_passes(const Tile& tile, int32_t low, int32_t high, F f) const;

  void run_tiles(const Call& call, int64_t work);
  void run_waves(const Call& call, int64_t work);
  void score_wave(const Call& call, const Wave& wave, Part part);
  void normalise_wave(const Call& call, const Wave& wave, Part part);
  void mix_wave(const Call& call, const Wave& wave, Part part);
  static const float* const* list_rows(const Call& call, const Pass& pass, int64_t column, Thread& thread);
  void score(const Call& call, const Pass& pass, Thread& thread, float* scores);
  void mix(const Call& call, const Pass& pass, Thread& thread, const float* scores, int64_t first, int64_t dims);
  static void open(Running& running, int32_t query, float* out, int64_t dims);
  static float* output(const Call& call, const Tile& tile, int32_t query);

  GemmRunner& runner_;
  std::vector<Thread> threads_;
  bool planned_ = false;
  AttendSpec spec_;           // that the plan is for
  std::vector<Keys> keys_;    // one per row of the batch
  std::vector<int32_t> own_;  // tree rows' own places, row after row
  std::vector<Tile> tiles_;
  std::vector<Running> running_;  // by thread and tile
  std::vector<Running> chunks_;   // by tile and chunk of the wave: that chunk's alone
  Scratch<float> scores_;         // likewise, [kTileQueries, kChunk]
};

}  // namespace ddtree::cpu
