#include "checkpoint/inspect.h"

#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/tensor_picker.h"

namespace ddtree {
namespace {

Result<bool> is_drafter(const std::string& dir) {
  TRY_ASSIGN(const MappedFile file, MappedFile::open(dir + "/config.json"));
  TRY_ASSIGN(const JsonDocument document, in_dir(dir, parse_json(file.text(), "config.json")));
  TRY_ASSIGN(const std::string architecture, in_dir(dir, find_architecture(document.root())));
  return architecture == "DFlashDraftModel";
}

void add(const Checkpoint::Tensor& tensor, TensorCount* count) {
  ++count->tensors;
  count->bytes += tensor.entry->bytes;
}

void count_tensors(const Checkpoint& checkpoint, TargetReport* report) {
  const std::string prefix = text_model_prefix(checkpoint);
  for (const Checkpoint::Tensor& tensor : checkpoint.tensors()) {
    const std::string& name = tensor.entry->name;
    add(tensor, &report->all);
    if (is_known_extra(name, prefix, report->config.num_layers, report->config.num_mtp_layers))
      add(tensor, &report->skipped);
    else if (name.ends_with(".weight_shape"))
      add(tensor, &report->shapes);
  }
}

Result<TargetReport> inspect_target(const std::string& dir, int64_t tp) {
  TargetReport report;
  report.dir = dir;
  TRY_ASSIGN(report.config, load_model_config(dir));
  TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(dir));
  TRY_ASSIGN(const DeepseekSource source, map_deepseek(checkpoint, report.config));
  report.shards = static_cast<int64_t>(checkpoint.shards().size());
  report.declared_bytes = checkpoint.declared_bytes();
  count_tensors(checkpoint, &report);
  report.weights = count_bytes(source);
  TRY_ASSIGN(report.plan, plan_memory(source, report.config, tp));
  return report;
}

Result<DrafterReport> inspect_drafter(const std::string& dir) {
  DrafterReport report;
  report.dir = dir;
  TRY_ASSIGN(report.config, load_drafter_config(dir));
  TRY_ASSIGN(const Checkpoint checkpoint, Checkpoint::open(dir));
  TRY_ASSIGN(const DrafterSource source, map_dflash(checkpoint, report.config));
  for (const Checkpoint::Tensor& tensor : checkpoint.tensors()) add(tensor, &report.all);
  report.weight_bytes = count_bytes(source);
  report.kv_bytes_per_token = kv_bytes_per_token(report.config);
  return report;
}

}  // namespace

Result<Inspection> inspect(const std::string& dir, const InspectOptions& options) {
  Inspection inspection;
  TRY_ASSIGN(const bool drafter_alone, is_drafter(dir));
  if (drafter_alone) {
    TRY_ASSIGN(inspection.drafter, inspect_drafter(dir));
    return inspection;
  }
  TRY_ASSIGN(inspection.target, inspect_target(dir, options.tp));
  if (options.drafter_dir.empty()) return inspection;
  TRY_ASSIGN(inspection.drafter, inspect_drafter(options.drafter_dir));
  TRY(check_drafter_fits(inspection.drafter->config, inspection.target->config));
  return inspection;
}

}  // namespace ddtree
