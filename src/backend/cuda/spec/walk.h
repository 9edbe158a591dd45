// After verification, on a GPU: the path of each tree that the target's own tokens follow, and what commits it. Equal
// to walk() of spec/walk.h, links that lead astray included: they are reported, never followed. No allocation and no
// waiting host, as in trees.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/cuda/spec/trees.h"
#include "base/result.h"

namespace ddtree::cuda {

inline constexpr int kMaxAccepted = kMaxDepth + 1;  // the root and a node a slot

enum class WalkStatus : int32_t {
  kOk = 0,
  kLinks = 1,  // a link leads out of the tree or does not ascend
  kDepth = 2,  // a path of more than kMaxDepth nodes
  kRows = 3,   // the stream's rows are fewer than 1 or more than kMaxRows
  kPages = 4,  // an accepted row has no page
};

// A row of the caches to copy; from < 0: none.
struct RowCopy {
  int32_t from = -1, to = -1;
};

// Per stream; of a stream whose status is not kOk the length is 0, the lists are empty and the context stays.
struct WalkResult {
  int32_t* status = nullptr;     // [streams] WalkStatus
  int32_t* length = nullptr;     // [streams] rows accepted: the tokens this step commits
  int32_t* row = nullptr;        // [streams, kMaxAccepted] accepted rows of the pass, ascending; −1 behind them
  int32_t* committed = nullptr;  // [streams, kMaxAccepted] the target's token after each of them; −1 behind them
  int32_t* next = nullptr;       // [streams] the last of these: the next root
  int32_t* context = nullptr;    // [streams] committed keys now; may be the input
  RowCopy* copies = nullptr;     // [streams, kMaxAccepted] from the scratch to the pages
};

struct WalkArgs {
  TreeArrays trees;
  const int32_t* first_row = nullptr;    // [streams + 1] of TreeRows
  const int32_t* sampled = nullptr;      // [rows of the pass] the target's token after each row
  const int32_t* context = nullptr;      // [streams] committed keys before this step
  const int32_t* scratch_row = nullptr;  // [streams] cache row of the stream's row 0
  const int32_t* pages = nullptr;        // [streams, page_stride] page ids
  const int32_t* page_count = nullptr;   // [streams]
  int32_t page_stride = 0;
  WalkResult out;
  int32_t streams = 0;
};

Status run_walk(const WalkArgs& args, cudaStream_t stream);

// Copies rows inside each cache, as Backend::copy_rows: all reads happen before any write.
struct CopyRowsArgs {
  void* const* caches = nullptr;  // [layers] on the device; each [cache_rows, row_bytes], 16-byte aligned
  int32_t layers = 0;
  int64_t cache_rows = 0;
  int32_t row_bytes = 0;  // multiple of 16
  const RowCopy* copies = nullptr;
  int32_t count = 0;  // of `copies`, empty ones included
};

Status run_copy_rows(const CopyRowsArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
