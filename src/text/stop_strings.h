// Stop strings, found in the text of a stream while it arrives token by token. The stop that is complete first in the
// text wins, whatever its place in the list and wherever token borders fall; of two that end together, the longer one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddtree {

// The stop strings of a request. Immutable.
class StopStrings {
 public:
  static constexpr size_t kMaxCount = 16;
  static constexpr size_t kMaxBytes = 1024;

  // Refuses empty strings, strings that are not UTF-8, and more or longer ones than the limits.
  static Result<StopStrings> create(const std::vector<std::string>& stops);

  bool empty() const { return stops_.empty(); }
  const std::string& text(int32_t stop) const { return stops_[static_cast<size_t>(stop)].text; }

 private:
  friend class StopMatcher;
  struct Stop {
    std::string text;
    // border[n]: length of the longest proper prefix of `text` that also ends its first n bytes.
    std::vector<uint16_t> border;
  };
  std::vector<Stop> stops_;
};

struct StopHit {
  int32_t stop;         // which one, its place in the list
  int64_t token;        // the token, counted from 0, whose text completed it
  int64_t text_length;  // bytes of text before the stop string: what the reply keeps
};

class StopMatcher {
 public:
  // `stops` must outlive this.
  explicit StopMatcher(const StopStrings& stops) : stops_(&stops), matched_(stops.stops_.size(), 0) {}

  // Takes the text of the next token (whole UTF-8 characters, or nothing) and returns the text that is settled by now:
  // no stop string can begin in it. Returns nothing after a hit.
  std::string push(std::string_view token_text);

  // The end of the stream without a further token: `rest` is what the detokenizer still held, counted to the last
  // token. Returns all text that is left, up to a stop string.
  std::string finish(std::string_view rest = {});

  const std::optional<StopHit>& hit() const { return hit_; }

 private:
  void scan(std::string_view text);
  std::string release(size_t bytes);

  const StopStrings* stops_;
  std::vector<uint16_t> matched_;  // per stop: how many of its first bytes end the text so far
  std::string held_;               // text not returned yet
  int64_t released_ = 0;           // bytes returned
  int64_t tokens_ = 0;
  std::optional<StopHit> hit_;
};

}  // namespace ddtree
