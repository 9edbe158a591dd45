// BlockDrafter: proposes a whole block of tokens per stream in one pass from what the target's layers said about the
// committed text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "checkpoint/drafter_config.h"
#include "checkpoint/weights_source.h"
#include "model/decoder.h"

namespace ddtree {

class BlockDrafter {
 public:
  virtual ~BlockDrafter() = default;

  // Computes and caches the context keys and values of committed rows from their taps [n, taps · hidden of the target].
  // Of `rows`, position and kv_row count. Each committed row is observed exactly once, before any block that follows
  // it.
  virtual void observe(TensorView taps, const Batch& rows, std::span<const KvLayer> cache) = 0;

  // One block per segment of `batch`, block_size() rows each: the anchor (the stream's last token) and mask tokens, at
  // the positions from the committed length on. `out` receives slots() rows per segment: slot s is about position
  // length + s.
  virtual void propose(const Batch& batch, std::span<const KvLayer> cache, const HeadResult& out) = 0;

  virtual int32_t block_size() const = 0;
  virtual int32_t slots() const = 0;  // block_size() − 1
  virtual int32_t mask_token() const = 0;
  virtual int32_t max_position() const = 0;  // its blocks end before it
  virtual int32_t layers() const = 0;
  virtual int32_t kv_width() const = 0;
  virtual std::span<const int32_t> tap_layers() const = 0;
};

struct DrafterLimits {
  int32_t max_observed_rows = 0;  // of one observe()
  int32_t max_streams = 0;        // of one propose()
};

// DFlash v1 (arXiv 2602.06036). Shares the target's embedding and head; refuses a target that doesn't fit, naming the
// field.
Result<std::unique_ptr<BlockDrafter>> make_dflash_drafter(Backend& backend, const DrafterConfig& config,
                                                          const DrafterSource& source, const Decoder& target,
                                                          const DrafterLimits& limits);

}  // namespace ddtree
