#include "text/stop_strings.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/utf8.h"

namespace ddtree {
namespace {

Error refuse(size_t index, std::string_view what) {
  return {Code::kInvalidArgument, fmt::format("stop[{}]: {}", index, what)};
}

// One byte further: how many first bytes of `text` end the stream, when `matched` (not all of them) did before `byte`.
size_t advance(std::string_view text, const std::vector<uint16_t>& border, size_t matched, char byte) {
  while (matched > 0 && text[matched] != byte) matched = border[matched];
  return text[matched] == byte ? matched + 1 : 0;
}

}  // namespace

Result<StopStrings> StopStrings::create(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxCount)
    return Error{Code::kInvalidArgument,
                 fmt::format("stop: {} strings; at most {} are allowed", stops.size(), kMaxCount)};
  StopStrings result;
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string& text = stops[i];
    if (text.empty()) return refuse(i, "an empty string would stop every reply at once");
    if (text.size() > kMaxBytes)
      return refuse(i, fmt::format("{} bytes; at most {} are allowed", text.size(), kMaxBytes));
    if (const std::optional<size_t> at = find_invalid_utf8(text))
      return refuse(i, fmt::format("not valid UTF-8 at byte {}", *at));
    std::vector<uint16_t> border(text.size() + 1, 0);
    for (size_t n = 1; n < text.size(); ++n)
      border[n + 1] = static_cast<uint16_t>(advance(text, border, border[n], text[n]));
    result.stops_.push_back({text, std::move(border)});
  }
  return result;
}

std::string StopMatcher::push(std::string_view token_text) {
  ++tokens_;
  if (hit_) return {};
  scan(token_text);
  if (hit_) return release(static_cast<size_t>(hit_->text_length - released_));
  const size_t open = matched_.empty() ? 0 : *std::max_element(matched_.begin(), matched_.end());
  return release(held_.size() - open);
}

std::string StopMatcher::finish(std::string_view rest) {
  if (hit_) return {};
  scan(rest);
  return release(hit_ ? static_cast<size_t>(hit_->text_length - released_) : held_.size());
}

// Adds `text` to held_, up to and with the byte that completes a stop.
void StopMatcher::scan(std::string_view text) {
  for (const char byte : text) {
    held_ += byte;
    size_t longest = 0;
    for (size_t i = 0; i < matched_.size(); ++i) {
      const StopStrings::Stop& stop = stops_->stops_[i];
      matched_[i] = static_cast<uint16_t>(advance(stop.text, stop.border, matched_[i], byte));
      if (matched_[i] < stop.text.size() || matched_[i] <= longest) continue;
      longest = matched_[i];
      const int64_t text_length = released_ + static_cast<int64_t>(held_.size() - longest);
      hit_ = StopHit{static_cast<int32_t>(i), tokens_ - 1, text_length};
    }
    if (hit_) return;
  }
}

std::string StopMatcher::release(size_t bytes) {
  std::string text = held_.substr(0, bytes);
  held_.erase(0, bytes);
  released_ += static_cast<int64_t>(bytes);
  return text;
}

}  // namespace ddtree
