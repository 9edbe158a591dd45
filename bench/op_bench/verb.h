// What the verbs of op_bench share: the shapes of a preset, the options and the table of verbs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/json_writer.h"
#include "base/result.h"

namespace ddtree::cuda {

// The sizes that one GPU of a machine sees: heads, intermediate widths and the vocabulary are its share.
struct PresetShape {
  int32_t hidden, heads, q_lora, kv_lora, rope_dim, nope_dim, v_dim;
  int32_t experts, top_k, inter, shared_inter, dense_inter, vocabulary;
  int32_t draft_layers, draft_heads, draft_kv_heads, draft_head_dim, draft_block;
};

struct BenchOptions {
  std::string preset;
  PresetShape shape = {};
  std::vector<int32_t> rows;       // empty: each verb's own
  std::vector<int32_t> contexts;   // of attention, likewise
  std::vector<int32_t> streams;    // of attention, likewise
  std::vector<std::string> modes;  // of the experts' kernels: "auto" or names
  int32_t check_rows = 2;          // rows compared with the reference, per point
  int32_t shared_bytes = 0;        // shared memory a CTA may use; 0: what the device has
  int samples = 5;
  double sustained_ms = 400;  // 0: burst only
  uint64_t seed = 2026;
};

struct BenchDevice {
  cudaStream_t stream = nullptr;
  std::string name;
  int sms = 0;
  double read_ceiling_gbps = 0;  // of a plain streaming kernel, in this run
};

// A verb prints its table on stdout while it goes, and writes one JSON object with a member "verb" and an array
// "points". A result that its reference contradicts is an error.
struct BenchVerb {
  const char* name;
  Status (*run)(const BenchOptions& options, const BenchDevice& device, JsonWriter& out);
};

Status bench_experts(const BenchOptions& options, const BenchDevice& device, JsonWriter& out);
Status bench_dense(const BenchOptions& options, const BenchDevice& device, JsonWriter& out);
Status bench_trees(const BenchOptions& options, const BenchDevice& device, JsonWriter& out);
Status bench_moe(const BenchOptions& options, const BenchDevice& device, JsonWriter& out);
Status bench_head(const BenchOptions& options, const BenchDevice& device, JsonWriter& out);
Status bench_attend(const BenchOptions& options, const BenchDevice& device, JsonWriter& out);
Status bench_draft_attend(const BenchOptions& options, const BenchDevice& device, JsonWriter& out);

}  // namespace ddtree::cuda
