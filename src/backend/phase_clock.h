// PhaseClock: wall time per phase, for Backend::mark and take_phase_ms of backends that run on the calling thread.
#pragma once

#include <array>
#include <chrono>
#include <utility>

#include "backend/backend.h"

namespace ddtree {

class PhaseClock {
 public:
  void mark(Phase phase) {
    const Clock::time_point now = Clock::now();
    ms_[static_cast<size_t>(phase)] += std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
  }
  std::array<double, kPhases> take() { return std::exchange(ms_, {}); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
  std::array<double, kPhases> ms_ = {};
};

}  // namespace ddtree
