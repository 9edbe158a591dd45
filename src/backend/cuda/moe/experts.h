// The routed INT4 experts of one MoE layer on a GPU: lists → gate_up → SiLU → down → combine, from routing ids and
// weights. Weights are packed once on the device (pack_*), then launches read only them and a workspace that the caller
// owns; nothing is allocated here, so launches can be captured into a CUDA graph.
//
// A row's bits depend on its own activations, ids and weights only: not on the other rows, their number or order.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "backend/cuda/moe/plan.h"
#include "base/result.h"

namespace ddtree::cuda {

// Of the current device.
Result<ExpertDevice> expert_device();

// --- weights ---

// Quantised weights of one projection of one expert in checkpoint order, on the device: value i of a row is nibble i
// mod 8 of word i / 8, as q + 8; w = (nibble − 8) · scale of its group of 32.
struct ExpertMatrix {
  const uint32_t* words = nullptr;   // [out, in / 8]
  const uint16_t* scales = nullptr;  // [out, in / 32] bf16
};

int64_t gate_up_bytes(const ExpertShape& shape);  // packed, all experts
int64_t down_bytes(const ExpertShape& shape);

// Packs one expert into the layer's arrays (layout.h).
Status pack_expert(const ExpertShape& shape, int32_t expert, ExpertMatrix gate, ExpertMatrix up, ExpertMatrix down,
                   void* packed_gate_up, void* packed_down, cudaStream_t stream);

// --- launch ---

struct ExpertsArgs {
  const void* gate_up = nullptr;   // packed
  const void* down = nullptr;      // packed
  const void* x = nullptr;         // [rows, hidden] bf16
  const int32_t* ids = nullptr;    // [rows, top_k]; −1: no expert (padding rows)
  const float* weights = nullptr;  // [rows, top_k]
  void* out = nullptr;             // [rows, hidden] bf16
  int32_t rows = 0;
  void* workspace = nullptr;       // expert_workspace_bytes(…, ≥ rows), 256-byte aligned
  std::optional<ExpertMode> mode;  // for tests and measurements; the bits don't depend on it
  const void* shared = nullptr;    // [rows, hidden] bf16, added to the sum behind the experts; null: none
};

int64_t expert_workspace_bytes(const ExpertShape& shape, int32_t max_rows);

// Once after allocation: clears the counters. Every launch leaves them clear.
Status init_expert_workspace(const ExpertShape& shape, int32_t max_rows, void* workspace, cudaStream_t stream);

// The shape must have passed check_expert_shape. A launch is one CTA on each of `device.sms` multiprocessors, which
// wait for each other: no other kernel may hold one of them for good.
Status run_experts(const ExpertShape& shape, const ExpertDevice& device, const ExpertsArgs& args, cudaStream_t stream);

}  // namespace ddtree::cuda
