// KvCache: the memory behind the pages. Per target layer one array of rows: the pages' rows first, then a fixed scratch
// for each stream's tree rows, which are never in a page until commit copies the accepted ones. The drafter's layers
// have arrays of the same form.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/memory.h"
#include "engine/page_pool.h"

namespace ddtree {

struct KvCacheShape {
  int32_t pages = 0;
  int32_t streams = 0;
  int32_t layers = 0, width = 0, scratch_rows = 0;  // target; scratch per stream: the largest tree with its root
  int32_t draft_layers = 0, draft_width = 0, draft_scratch_rows = 0;  // drafter; scratch per stream: its block
};

class KvCache {
 public:
  static Result<KvCache> create(Backend& backend, const KvCacheShape& shape);

  PagePool& pool() { return pool_; }
  const KvCacheShape& shape() const { return shape_; }
  int32_t capacity_rows() const { return shape_.pages * kPageRows; }

  std::span<const KvLayer> target() const { return target_; }
  std::span<const KvLayer> draft() const { return draft_; }

  // Physical rows, as Batch::kv_row and Backend::copy_rows take them.
  static int32_t page_row(std::span<const int32_t> pages, int32_t position) {
    return pages[position / kPageRows] * kPageRows + position % kPageRows;
  }
  int32_t tree_row(int32_t stream, int32_t node) const { return capacity_rows() + stream * shape_.scratch_rows + node; }
  int32_t block_row(int32_t stream, int32_t slot) const {
    return capacity_rows() + stream * shape_.draft_scratch_rows + slot;
  }

 private:
  KvCache(Backend& backend, const KvCacheShape& shape) : shape_(shape), pool_(shape.pages), memory_(backend) {}

  KvCacheShape shape_;
  PagePool pool_;
  Memory memory_;
  std::vector<KvLayer> target_, draft_;
};

}  // namespace ddtree
