#include "checkpoint/tensor_picker.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace ddtree {
namespace {

constexpr std::string_view kTextPrefix = "language_model.";

}  // namespace

TensorPicker::TensorPicker(const Checkpoint& checkpoint, std::string prefix, int32_t int4_group_size)
    : checkpoint_(checkpoint),
      prefix_(std::move(prefix)),
      int4_group_size_(int4_group_size),
      taken_(checkpoint.tensors().size()) {}

bool TensorPicker::has(std::string_view name) const {
  std::string full = prefix_;
  full += name;
  return checkpoint_.find(full).has_value();
}

Result<const Checkpoint::Tensor*> TensorPicker::find(std::string_view name) {
  full_name_ = prefix_;
  full_name_ += name;
  const std::optional<size_t> index = checkpoint_.find(full_name_);
  if (!index)
    return Error{Code::kNotFound,
                 fmt::format("{}: tensor {} is missing from the checkpoint", checkpoint_.dir(), full_name_)};
  taken_[*index] = true;
  return &checkpoint_.tensors()[*index];
}

Error TensorPicker::refuse(const Checkpoint::Tensor& tensor, Code code, const std::string& what) const {
  return Error{code, fmt::format("{}: tensor {} is {}, {}", checkpoint_.file(tensor), tensor.entry->name,
                                 describe(*tensor.entry), what)};
}

Status TensorPicker::check_shape(const Checkpoint::Tensor& tensor, std::initializer_list<int64_t> shape) const {
  const TensorEntry& entry = *tensor.entry;
  if (std::equal(shape.begin(), shape.end(), entry.dim.begin(), entry.dim.begin() + entry.rank)) return {};
  return refuse(tensor, Code::kInvalidArgument,
                fmt::format("config.json wants the shape [{}]", fmt::join(shape, ", ")));
}

Result<TensorView> TensorPicker::take(std::string_view name, std::initializer_list<int64_t> shape) {
  TRY_ASSIGN(const Checkpoint::Tensor* tensor, find(name));
  const DType dtype = tensor->entry->dtype;
  if (dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2)
    return refuse(*tensor, Code::kUnsupported, "FP8 checkpoints are not supported");
  if (!is_float(dtype)) return refuse(*tensor, Code::kInvalidArgument, "must be BF16, F16 or F32");
  TRY(check_shape(*tensor, shape));
  return checkpoint_.view(*tensor);
}

Result<Linear> TensorPicker::take_plain(const std::string& module, int64_t out, int64_t in) {
  TRY_ASSIGN(const TensorView weight, take(module + ".weight", {out, in}));
  return Linear{.weight = weight, .scale = {}, .group_size = 0, .out = out, .in = in};
}

Result<Linear> TensorPicker::take_linear(const std::string& module, int64_t out, int64_t in) {
  return has(module + ".weight_packed") ? take_int4(module, out, in) : take_plain(module, out, in);
}

Result<Linear> TensorPicker::take_int4(const std::string& module, int64_t out, int64_t in) {
  TRY_ASSIGN(const Checkpoint::Tensor* packed, find(module + ".weight_packed"));
  const int64_t group = int4_group_size_;
  if (group == 0)
    return refuse(*packed, Code::kInvalidArgument,
                  "but config.json has no quantization_config that says how to read it");
  if (in % group != 0)
    return refuse(*packed, Code::kInvalidArgument,
                  fmt::format("but its {} input features are no multiple of group_size {}", in, group));
  if (packed->entry->dtype != DType::kI32) return refuse(*packed, Code::kInvalidArgument, "must be I32");
  TRY(check_shape(*packed, {out, in / 8}));
  if (has(module + ".weight_shape")) {
    TRY_ASSIGN(const Checkpoint::Tensor* shape, find(module + ".weight_shape"));
    if (shape->entry->dtype != DType::kI32 && shape->entry->dtype != DType::kI64)
      return refuse(*shape, Code::kInvalidArgument, "must be I32 or I64");
    TRY(check_shape(*shape, {2}));
  }
  TRY_ASSIGN(const TensorView scale, take(module + ".weight_scale", {out, in / group}));
  return Linear{.weight = checkpoint_.view(*packed),
                .scale = scale,
                .group_size = static_cast<int32_t>(group),
                .out = out,
                .in = in};
}

Status TensorPicker::finish(const std::function<bool(std::string_view)>& is_known_extra) const {
  constexpr size_t kListed = 5;
  std::string names;
  size_t n = 0;
  for (size_t i = 0; i < taken_.size(); ++i) {
    const std::string& name = checkpoint_.tensors()[i].entry->name;
    if (taken_[i] || is_known_extra(name)) continue;
    if (++n > kListed) continue;
    if (n > 1) names += ", ";
    names += name;
  }
  if (n == 0) return {};
  return Error{Code::kUnsupported, fmt::format("{}: {} tensors that this architecture does not have: {}{}",
                                               checkpoint_.dir(), n, names, n > kListed ? ", …" : "")};
}

bool is_known_extra(std::string_view name, std::string_view prefix, int64_t num_layers, int64_t num_mtp_layers) {
  constexpr std::string_view kLayers = "model.layers.";
  if (name.starts_with("vision_tower.") || name.starts_with("mm_projector.")) return true;
  if (name.ends_with(".rotary_emb.inv_freq")) return true;
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  if (!name.starts_with(kLayers)) return false;
  name.remove_prefix(kLayers.size());
  int64_t layer = -1;
  const auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (ec != std::errc() || end == name.data() + name.size() || *end != '.') return false;
  return layer >= num_layers && layer < num_layers + num_mtp_layers;
}

std::string text_model_prefix(const Checkpoint& checkpoint) {
  return std::string(checkpoint.find("language_model.model.embed_tokens.weight") ? kTextPrefix : std::string_view());
}

}  // namespace ddtree
