#include "model/load.h"

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "checkpoint/weights_source.h"

namespace ddtree {
namespace {

namespace fs = std::filesystem;

bool has_config(const fs::path& dir) {
  std::error_code ignored;
  return fs::is_regular_file(dir / "config.json", ignored);
}

// The target's weights go to the backend here, so that the mapped shards are gone afterwards.
Result<std::unique_ptr<Decoder>> load_target(Backend& backend, const std::string& dir, const ModelConfig& config,
                                             const DecoderOptions& options) {
  TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(dir));
  TRY_ASSIGN(const DeepseekSource source, load_deepseek(checkpoint, config));
  return make_deepseek_decoder(backend, config, source, options);
}

Result<std::unique_ptr<BlockDrafter>> load_drafter(Backend& backend, const std::string& dir,
                                                   const DrafterConfig& config, const Decoder& target,
                                                   const LoadLimits& limits) {
  TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(dir));
  TRY_ASSIGN(const DrafterSource source, load_dflash(checkpoint, config));
  return make_dflash_drafter(backend, config, source, target, {limits.max_observed_rows, limits.max_streams});
}

}  // namespace

Result<ModelPaths> locate_model(const std::string& model, const std::string& draft) {
  const fs::path dir(model);
  ModelPaths paths;
  if (has_config(dir)) {
    paths.target = model;
  } else if (has_config(dir / "target")) {
    paths.target = (dir / "target").string();
  } else {
    return Error{Code::kNotFound, model + ": no config.json in it or in its target/; give the directory of a model"};
  }
  if (draft == "none") return paths;
  if (draft != "auto") {
    if (!has_config(draft))
      return Error{Code::kNotFound, draft + ": no config.json in it; give the directory of a drafter, or none"};
    paths.draft = draft;
    return paths;
  }
  std::error_code ignored;
  const fs::path target = fs::canonical(paths.target, ignored);
  for (const fs::path& candidate : {dir / "drafter", target.parent_path() / "drafter"})
    if (paths.draft.empty() && has_config(candidate)) paths.draft = candidate.string();
  return paths;
}

Result<LoadedModel> load_model(Backend& backend, const ModelPaths& paths, const LoadLimits& limits,
                               const ModelOptions& options) {
  LoadedModel model;
  TRY_ASSIGN(model.config, load_model_config(paths.target, options.target));
  DecoderOptions decoder;
  decoder.max_rows = limits.max_rows;
  decoder.progress = options.progress;
  if (!paths.draft.empty()) {
    TRY_ASSIGN(model.draft_config, load_drafter_config(paths.draft, options.drafter));
    TRY(check_drafter_fits(*model.draft_config, model.config));
    decoder.tap_layers.assign(model.draft_config->target_layer_ids.begin(), model.draft_config->target_layer_ids.end());
  }
  TRY_ASSIGN(model.decoder, load_target(backend, paths.target, model.config, decoder));
  if (model.draft_config) {
    TRY_ASSIGN(model.drafter, load_drafter(backend, paths.draft, *model.draft_config, *model.decoder, limits));
  }
  return model;
}

}  // namespace ddtree
