#include "engine/kv_cache.h"

namespace ddtree {
namespace {

int64_t target_rows(const KvCacheShape& s) {
  return int64_t{s.pages} * kPageRows + int64_t{s.streams} * s.scratch_rows;
}
int64_t draft_rows(const KvCacheShape& s) {
  return int64_t{s.pages} * kPageRows + int64_t{s.streams} * s.draft_scratch_rows;
}

Status add_layers(Memory& memory, DType dtype, int32_t layers, int64_t rows, int64_t width,
                  std::vector<KvLayer>& views) {
  for (int32_t i = 0; i < layers; ++i) {
    TRY_ASSIGN(const KvLayer view, memory.take("KV cache", dtype, {rows, width}));
    views.push_back(view);
  }
  return {};
}

}  // namespace

Result<KvCache> KvCache::create(Backend& backend, const KvCacheShape& shape) {
  KvCache cache(backend, shape);
  const DType dtype = backend.kv_dtype();
  TRY(add_layers(cache.memory_, dtype, shape.layers, target_rows(shape), shape.width, cache.target_));
  TRY(add_layers(cache.memory_, dtype, shape.draft_layers, draft_rows(shape), shape.draft_width, cache.draft_));
  return cache;
}

}  // namespace ddtree
