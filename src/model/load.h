// From directories to a runnable pair: the target and, if wanted, its drafter.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "checkpoint/drafter_config.h"
#include "checkpoint/model_config.h"
#include "model/decoder.h"
#include "model/drafter.h"

namespace ddtree {

struct ModelPaths {
  std::string target;  // directory with config.json
  std::string draft;   // the same of a drafter; empty: none
};

// `model` is a target's directory, or one that holds target/ and perhaps drafter/. `draft` is a drafter's directory,
// "none", or "auto": the drafter/ inside or beside the model, if there is one.
Result<ModelPaths> locate_model(const std::string& model, const std::string& draft);

struct LoadLimits {
  int32_t max_rows = 0;  // of one target pass
  int32_t max_streams = 0;
  int32_t max_observed_rows = 0;  // of one drafter observation
};

struct ModelOptions {
  ConfigOptions target;
  DrafterOptions drafter;
  std::function<void(int64_t done, int64_t layers)> progress;  // of the target's weights; empty: not
};

struct LoadedModel {
  ModelConfig config;
  std::optional<DrafterConfig> draft_config;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<BlockDrafter> drafter;  // null: none
};

// The backend must outlive the result. Weights are read once; the files are closed again before it returns.
Result<LoadedModel> load_model(Backend& backend, const ModelPaths& paths, const LoadLimits& limits,
                               const ModelOptions& options = {});

}  // namespace ddtree
