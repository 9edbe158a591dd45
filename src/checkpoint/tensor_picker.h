// TensorPicker: takes the tensors a model needs out of a checkpoint, each checked against the dtype and shape it must
// have, and at the end accounts for the rest: known extras are skipped, anything else is refused.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "tensor/linear.h"

namespace ddtree {

class TensorPicker {
 public:
  // `prefix` stands before every name asked for. `int4_group_size` is what config.json declares, 0: nothing.
  TensorPicker(const Checkpoint& checkpoint, std::string prefix, int32_t int4_group_size);

  bool has(std::string_view name) const;

  // A tensor of exactly this shape, in BF16, F16 or F32.
  Result<TensorView> take(std::string_view name, std::initializer_list<int64_t> shape);

  // <module>.weight [out, in], or the INT4 triple weight_packed, weight_scale and (optional) weight_shape where
  // <module>.weight_packed exists.
  Result<Linear> take_linear(const std::string& module, int64_t out, int64_t in);
  // <module>.weight only.
  Result<Linear> take_plain(const std::string& module, int64_t out, int64_t in);

  // Refuses what nobody took, unless `is_known_extra(name)`; names the first few.
  Status finish(const std::function<bool(std::string_view)>& is_known_extra) const;

 private:
  Result<const Checkpoint::Tensor*> find(std::string_view name);
  Result<Linear> take_int4(const std::string& module, int64_t out, int64_t in);
  Status check_shape(const Checkpoint::Tensor& tensor, std::initializer_list<int64_t> shape) const;
  Error refuse(const Checkpoint::Tensor& tensor, Code code, const std::string& what) const;

  const Checkpoint& checkpoint_;
  std::string prefix_;
  int32_t int4_group_size_;
  std::vector<bool> taken_;
  std::string full_name_;  // scratch: hundreds of thousands of names are looked up
};

// Tensors of a checkpoint that the text model has no use for: they lie beside the prefixed text model
// ("vision_tower.…", "mm_projector.…"), are derived buffers, or belong to the multi-token-prediction layers
// [num_layers, num_layers + num_mtp).
bool is_known_extra(std::string_view name, std::string_view prefix, int64_t num_layers, int64_t num_mtp_layers);

// "language_model." where the checkpoint's text model has that prefix, else "".
std::string text_model_prefix(const Checkpoint& checkpoint);

}  // namespace ddtree
