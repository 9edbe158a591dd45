// Attention of a batch over a paged cache on a GPU: MLA (the value is the key's beginning) or GQA, for trees, causal
// chunks and a drafter's bidirectional blocks. Nothing is allocated and nothing waits for the host here, so launches
// can be captured into a CUDA graph.
//
// A row's bits depend on its own query and the keys it sees, in position order: not on the other rows, and not on
// whether those keys are committed text or its ancestors in a tree. docs/kernels/attention.md says how.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "backend/backend.h"
#include "backend/cuda/attention/work.h"
#include "base/result.h"

namespace ddtree::cuda {

struct AttendDevice {
  int32_t sms = 0;
  int32_t shared_bytes = 0;  // a CTA may use
  bool wgmma = false;        // sm_90
};

// Of the current device.
Result<AttendDevice> attend_device();

// MLA: kv_lora 512 + rope 64; GQA: head_dim 64 or 128, v_dim the same.
Status check_attend_spec(const AttendSpec& spec, const AttendDevice& device);

struct AttendPlan {
  AttendDevice device;
  Tiling tiling;
  int32_t items = 0;
  bool whole = false;       // an item takes all splits of its tile; the bits don't depend on it
  int32_t stages = 0;       // chunks of keys in shared memory
  int32_t fold_splits = 0;  // splits that are folded from shared memory at once
  int32_t shared_bytes = 0;
  int64_t workspace_bytes = 0;
};

// The spec must have passed check_attend_spec. `force_whole`: for tests.
AttendPlan plan_attend(const AttendSpec& spec, const AttendDevice& device, std::span<const AttendSegment> segments,
                       bool force_whole = false);

// All on the device. Positions of a segment's keys: committed keys have 0 … context − 1; a tree row has
// context + depth, rows of a chunk or block context + i.
struct AttendArgs {
  const void* q = nullptr;      // [rows, heads, qk_dim] bf16
  const void* cache = nullptr;  // [cache_rows, width] bf16, as KvLayer
  int64_t cache_rows = 0;
  const int32_t* position = nullptr;         // [rows]
  const int32_t* kv_row = nullptr;           // [rows]
  const AncestorWords* ancestors = nullptr;  // [rows]; read for trees only
  const AttendSegment* segments = nullptr;   // those that the plan was made for
  const int32_t* pages = nullptr;
  int32_t segment_count = 0;
  int32_t rows = 0;
  void* out = nullptr;        // [rows, heads, v_dim] bf16
  void* workspace = nullptr;  // plan.workspace_bytes, 256-byte aligned; needs no initial value
};

Status run_attend(const AttendSpec& spec, const AttendPlan& plan, const AttendArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
