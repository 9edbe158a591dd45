// Every family of /metrics. No label has a value that a client chooses.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "engine/engine.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/metrics.h"

namespace ddtree {

struct MetricsSnapshot {
  EngineLoad load;
  std::string_view state;  // "loading", "ready", "draining", "stalled"
  std::string_view version, backend;
};

// Thread-safe.
class ServerMetrics final : public GenerationObserver {
 public:
  ServerMetrics();

  void on_http(const HttpDone& done);
  void on_first_token(double seconds) override;
  void on_step(double seconds, int tokens) override;
  void on_end(const GenerationReport& report) override;

  std::string text(const MetricsSnapshot& snapshot) const;

 private:
  // Over all requests that ended.
  struct Spec {
    int64_t passes = 0;  // that verified drafted nodes or could have, of requests that were speculated
    int64_t drafted = 0, accepted = 0, trimmed = 0;
    std::array<int64_t, kMaxDepth + 1> at_depth = {};
    std::array<int64_t, kMaxRanks> at_rank = {};
  };

  void write_requests(MetricsText& out) const;
  void write_engine(MetricsText& out, const MetricsSnapshot& snapshot) const;
  void write_speculation(MetricsText& out) const;
  void write_aliases(MetricsText& out) const;

  mutable std::mutex mutex_;  // guards all below
  std::map<std::pair<std::string, int>, int64_t> by_route_;
  std::map<std::string, int64_t> by_outcome_;
  int64_t gone_ = 0, prompt_tokens_ = 0, cached_tokens_ = 0, tokens_ = 0, preemptions_ = 0, not_speculated_ = 0;
  Histogram first_token_, between_tokens_, http_, prompt_, decode_;
  Histogram prompt_length_, length_, step_tokens_, accepted_length_;
  Spec spec_;
};

}  // namespace ddtree
