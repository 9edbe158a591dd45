// Decoder: the target model. One forward path serves prompt chunks, plain decoding and trees; rows differ only in what
// they may see.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/model_config.h"
#include "checkpoint/weights_source.h"

namespace ddtree {

struct DecoderOptions {
  int32_t max_rows = 0;             // of one batch
  std::vector<int32_t> tap_layers;  // ascending; layer i's tap is the residual stream after layer i
  std::function<void(int64_t done, int64_t layers)> progress;  // called while weights are prepared; empty: not
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  // Runs the rows of `batch` through all layers, writing their keys to cache[layer] at Batch::kv_row. The batch must
  // live until the backend's finish().
  virtual void forward(const Batch& batch, std::span<const KvLayer> cache) = 0;

  // Logits of chosen rows of the last forward; `rows` has one entry per row of `out`.
  virtual void head(const HeadResult& out, std::span<const int32_t> rows) = 0;

  // Taps of the last forward: [rows, taps · hidden], in the order of DecoderOptions::tap_layers. Valid until the next.
  virtual TensorView taps() const = 0;

  virtual int32_t layers() const = 0;
  virtual int32_t kv_width() const = 0;  // values a cache row of one layer holds
  virtual int32_t vocab_size() const = 0;
  virtual int32_t hidden_size() const = 0;
  virtual const PreparedLinear& embedding() const = 0;
  virtual const PreparedLinear& lm_head() const = 0;
};

// DeepSeek-V2/V3, Moonlight, Kimi-K2 and their kin: MLA with leading dense and then mixture-of-experts layers.
Result<std::unique_ptr<Decoder>> make_deepseek_decoder(Backend& backend, const ModelConfig& config,
                                                       const DeepseekSource& source, const DecoderOptions& options);

}  // namespace ddtree
