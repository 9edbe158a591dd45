// Draft trees on a GPU: built for all streams in one launch, equal to build_tree's (spec/tree.h) to the bit, then laid
// out as the rows of one verification pass. Nothing is allocated here and the host waits for nothing, so launches can
// be captured into a CUDA graph. Everything below lies in device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/result.h"
#include "spec/tree.h"

namespace ddtree::cuda {

// What a drafter's head leaves, for all streams.
struct DraftTable {
  const float* value = nullptr;  // [streams, slots, k] descending: log-probabilities, or logits where lse is given
  const int32_t* id = nullptr;   // [streams, slots, k]
  const float* lse = nullptr;    // [streams, slots]: log-probability = value − lse in float32; null: none
  int32_t slots = 0;             // at most kMaxDepth
  int32_t k = 0;                 // at most kMaxRanks
};

// What one stream asks for. Values beyond the table's or the builder's limits are taken as those limits.
struct TreeRequest {
  int32_t root_token = 0;
  int32_t budget = 0;     // nodes; below 1: the root alone
  int32_t max_depth = 0;  // slots to use
  int32_t k = 0;          // candidates of a slot to use
  int32_t chain_first = 0;
};

// All streams' trees, as the arrays of Tree: element [stream · kMaxRows + row]. Rows from rows[stream] on mean nothing.
struct TreeArrays {
  int32_t* rows = nullptr;  // [streams]
  int32_t* token = nullptr;
  int16_t* parent = nullptr;
  int16_t* depth = nullptr;
  int16_t* rank = nullptr;
  int16_t* first_child = nullptr;
  int16_t* next_sibling = nullptr;
  double* log_prob = nullptr;
  double* floor = nullptr;  // the least log_prob of nodes 1 … row: what trimming ranks by
  AncestorWords* ancestors = nullptr;
};

int64_t tree_arrays_bytes(int32_t streams);
TreeArrays tree_arrays(void* memory, int32_t streams);  // 256-byte aligned

Status run_build_trees(int32_t streams, const DraftTable& table, const TreeRequest* requests, const TreeArrays& out,
                       cudaStream_t stream);

// The rows of a pass over all streams, as those of Batch (backend/batch.h).
struct TreeRows {
  int32_t* first_row = nullptr;  // [streams + 1]: stream s has rows first_row[s] … first_row[s + 1] − 1
  int32_t* token = nullptr;      // [max_rows], and so on
  int32_t* position = nullptr;
  int32_t* kv_row = nullptr;
  AncestorWords* ancestors = nullptr;
};

struct LayOutArgs {
  TreeArrays trees;                      // trimmed in place: rows and links
  const int32_t* context = nullptr;      // [streams] committed keys: the root's position
  const int32_t* scratch_row = nullptr;  // [streams] cache row of the stream's row 0; its others follow
  int32_t padding_kv_row = 0;            // of rows beyond the last tree's, up to max_rows
  TreeRows out;
  int32_t streams = 0;
  int32_t max_rows = 0;  // at least `streams`
};

// Keeps what trim_to_rows keeps, trims the trees and lays their rows out one stream after another. Padding rows have
// token −1, position 0 and no ancestors.
Status run_lay_out_trees(const LayOutArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
