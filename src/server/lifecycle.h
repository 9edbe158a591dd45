// What the server says about itself to load balancers and supervisors, and the watchdog behind it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/http.h"

namespace ddtree {

// An engine that has work and completes no step. Its thread may be stuck in a device, so it is looked at from outside.
class Watchdog {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Watchdog(Clock::duration patience) : patience_(patience) {}

  // How long the engine has had work without completing a step, as far as the calls up to now tell.
  Clock::duration waiting(const EngineLoad& load, Clock::time_point now);
  bool stalled(const EngineLoad& load, Clock::time_point now) { return waiting(load, now) > patience_; }

 private:
  Clock::duration patience_;
  std::optional<Clock::time_point> last_;  // EngineLoad::since at the call before, if it was busy
  Clock::time_point seen_;                 // the first call at which it was that
};

// loading → ready → draining; stalled stands beside them. Thread-safe.
class Lifecycle {
 public:
  void set_ready() { ready_ = true; }
  void set_draining() { draining_ = true; }
  void set_stalled(bool stalled) { stalled_ = stalled; }

  std::string_view state() const;  // "loading", "ready", "draining" or "stalled"
  bool live() const { return !stalled_; }

  // /livez, /readyz, /health: public; /version. They must not outlive this.
  std::vector<Route> routes(std::string version) const;

 private:
  std::atomic<bool> ready_{false}, draining_{false}, stalled_{false};
};

// The route for /metrics, whose text `write` makes.
Route metrics_route(bool is_public, std::function<std::string()> write);

// The line that is logged about a request.
void log_request(const HttpDone& done);

}  // namespace ddtree
