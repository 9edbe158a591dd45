// What goes into the engine and what comes out of it. Token ids only: text, templates and stop strings live above.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"
#include "spec/sampling.h"
#include "spec/tree.h"

namespace ddtree {

using RequestId = uint64_t;

enum class SpecMode : uint8_t {
  kOff,    // a tree of its root alone
  kChain,  // the drafter's best token of every slot
  kTree,   // best-first tree of `budget` nodes
  kAuto,   // a tree of at most `budget` nodes where that is expected to be faster, else off
};
std::string_view spec_mode_name(SpecMode mode);
std::optional<SpecMode> spec_mode_from_name(std::string_view name);

struct SpecOptions {
  SpecMode mode = SpecMode::kTree;
  int32_t budget = 16;       // nodes besides the root; 0 … 255
  bool chain_first = false;  // seed the tree with the chain, then best-first
};

struct Request {
  std::vector<int32_t> prompt;    // 1 … context tokens
  int32_t max_tokens = 128;       // ≥ 1
  bool ignore_eos = false;        // the model's own end tokens do not stop; stop_ids still do
  std::vector<int32_t> stop_ids;  // further tokens that end the text
  SamplingParams sampling;
  int32_t choice = 0;  // which of n answers to the same prompt
  SpecOptions spec;
  std::string cache_salt;  // with prefix reuse: only requests of the same salt share their beginnings
  // Asked about every token, in order, on the engine's thread: true if the text ends with it, as at a stop string.
  std::function<bool(int32_t token)> stops;
  bool trace = false;  // keep a StepRecord for every pass
};

enum class FinishReason : uint8_t { kNone, kStop, kLength, kCancelled, kError };
std::string_view finish_reason_name(FinishReason reason);

inline constexpr uint64_t kHashPrime = 0x100000001b3u;  // FNV-1a, 64 bits

struct OutputToken {
  int32_t id = 0;
  float margin = 0;                    // top-1 minus top-2 logit of the row that gave it
  uint64_t row_hash = 0;               // of that row's best logits and log-sum
  std::vector<TokenLogprob> logprobs;  // the token's own first, then the most likely; empty unless asked for
};

// What a drafter proposed for one stream: per slot the largest logits, their ids and the log-sum-exp over the
// vocabulary.
struct CandidateTable {
  int32_t slots = 0, k = 0;
  std::vector<float> top_value;  // [slots][k]
  std::vector<int32_t> top_id;   // [slots][k]
  std::vector<float> lse;        // [slots]
};

// One verification pass of one stream, for statistics, tests and tree views.
struct StepRecord {
  int32_t position = 0;  // of the root
  Tree tree;
  std::vector<int16_t> path;  // accepted rows, the root first
  int32_t next = 0;           // the token after the path: the next root
  CandidateTable candidates;  // what the tree was built from; empty without a drafter
};

struct RequestStats {
  int32_t prompt_tokens = 0, output_tokens = 0;
  int32_t prefill_tokens = 0;  // rows run as prompt, those repeated after a preemption included
  int32_t cached_tokens = 0;   // prompt rows that were there already, when the request was first admitted
  int32_t steps = 0;           // verification passes
  int32_t committed = 0;       // tokens those passes yielded, before stop or length cut them
  int32_t drafted = 0;         // nodes verified, roots not counted
  int32_t trimmed = 0;         // passes whose tree was cut to fit the step's rows
  int32_t preemptions = 0;
  std::array<int32_t, kMaxDepth + 2> accepted_histogram = {};  // passes by tokens committed
  std::array<int32_t, kMaxDepth + 1> accepted_at_depth = {};   // accepted nodes by depth
  std::array<int32_t, kMaxRanks> accepted_at_rank = {};        // and by rank among their parent's children
  std::array<int32_t, kMaxNodes + 1> passes_by_nodes = {};     // passes by nodes verified
  int32_t probes = 0;                                          // passes that drafted only to see whether that pays
  std::array<double, kPhases> phase_ms = {};                   // this request's share by rows
  uint64_t logits_hash = 0;  // of the best logits and log-sums of every token's row; equal bits give equal hashes
  std::string_view effective_mode;  // what was done: "off", "chain", "tree", "auto"
  std::string not_speculating;      // why not, or why no longer; empty while speculating
  std::string decision;             // mode auto: the last decision and what it rests on

  double accepted_length() const { return steps ? static_cast<double>(committed) / steps : 0; }
};

struct Event {
  RequestId request = 0;
  std::vector<OutputToken> tokens;  // in order, possibly none
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;         // with FinishReason::kError
  std::optional<RequestStats> stats;  // with the last event
  std::vector<StepRecord> trace;      // with the last event, if asked for
};

// Called on the engine's thread; must return at once. The last event of a request has finish != kNone.
using EventSink = std::function<void(Event&&)>;

}  // namespace ddtree
