// What `ddtree inspect` reports of a model directory: configuration, tensors by group, memory per rank. Reads headers
// only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/drafter_config.h"
#include "checkpoint/memory_plan.h"
#include "checkpoint/model_config.h"

namespace ddtree {

struct TensorCount {
  int64_t tensors = 0;
  int64_t bytes = 0;
};

struct TargetReport {
  std::string dir;
  ModelConfig config;
  int64_t shards = 0;
  TensorCount all;
  TensorCount shapes;                     // weight_shape tensors: checked, then dropped
  TensorCount skipped;                    // not of the text model
  WeightBytes weights;                    // of the whole text model, without weight_shape
  std::optional<int64_t> declared_bytes;  // the index's metadata.total_size
  MemoryPlan plan;
};

struct DrafterReport {
  std::string dir;
  DrafterConfig config;
  TensorCount all;
  int64_t weight_bytes = 0;  // whole on every rank
  int64_t kv_bytes_per_token = 0;
};

// A target with its drafter if it has one, or a drafter alone.
struct Inspection {
  std::optional<TargetReport> target;
  std::optional<DrafterReport> drafter;
};

struct InspectOptions {
  int64_t tp = 1;
  std::string drafter_dir;  // "": no drafter
};

Result<Inspection> inspect(const std::string& dir, const InspectOptions& options = {});

std::string to_text(const Inspection& inspection);
std::string to_json(const Inspection& inspection);

}  // namespace ddtree
