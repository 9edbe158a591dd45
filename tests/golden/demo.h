// The demo pair on a backend, and the golden vectors that PyTorch made for it (see README.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/engine_core.h"
#include "model/load.h"

namespace ddtree {

inline constexpr int kGoldenPrompts = 12;
inline constexpr int kGoldenTokens = 192;

// golden.safetensors by name, such as "p3.greedy".
std::vector<int32_t> golden_ids(const std::string& name);
std::vector<float> golden_floats(const std::string& name);

std::vector<int32_t> golden_prompt(int index);
std::vector<int32_t> golden_greedy(int index);

// One backend of one thread (test programs run side by side) with the demo pair loaded, for up to kStreams streams.
class DemoPair {
 public:
  static constexpr int kStreams = 16;

  static DemoPair& on(const std::string& device, const std::string& isa = "auto");  // loaded once a program

  Backend& backend() { return *backend_; }
  LoadedModel& model() { return model_; }
  // `pages`: of the cache, for all streams together; 0: enough for every golden prompt at once.
  std::unique_ptr<EngineCore> engine(int streams, int pages = 0, bool with_drafter = true, bool reuse_prefixes = false);

 private:
  DemoPair(const std::string& device, const std::string& isa);

  std::unique_ptr<Backend> backend_;
  LoadedModel model_;
};

struct Decoded {
  std::vector<OutputToken> tokens;
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;
  RequestStats stats;
  std::vector<StepRecord> trace;

  std::vector<int32_t> ids() const;
};

// Runs the requests to their end, at most `streams` at the same time: the next begins when one ends.
std::vector<Decoded> decode(EngineCore& engine, std::vector<Request> requests, int streams);
Decoded decode(EngineCore& engine, Request request);

// A greedy request that ignores the end token, as the goldens do.
Request greedy_request(std::vector<int32_t> prompt, int max_tokens, SpecOptions spec);

}  // namespace ddtree
