#include "text/chat_prompt.h"

#include <algorithm>

#include "base/check.h"

namespace ddtree {
namespace {

// The marker that begins first, and where. No marker begins with another one.
struct FoundMarker {
  size_t at = std::string_view::npos;
  std::string_view marker;
};

FoundMarker find_marker(std::string_view words, std::span<const std::string_view> markers) {
  FoundMarker found;
  for (const std::string_view marker : markers)
    if (const size_t at = words.find(marker); at < found.at) found = {at, marker};
  return found;
}

}  // namespace

ChatPromptBuilder& ChatPromptBuilder::literal(std::string_view words) {
  while (true) {
    const FoundMarker found = find_marker(words, markers_);
    run_ += words.substr(0, found.at);
    if (found.at == std::string_view::npos) return *this;
    flush();
    const std::optional<int32_t> id = tokenizer_.special_id(found.marker);
    CHECK(id);  // ChatRenderer::create looked
    ids_.push_back(*id);
    words.remove_prefix(found.at + found.marker.size());
  }
}

ChatPromptBuilder& ChatPromptBuilder::text(std::string_view text) {
  run_ += text;
  return *this;
}

void ChatPromptBuilder::flush() {
  if (run_.empty() || !status_.ok()) return;
  const Result<std::vector<int32_t>> ids = tokenizer_.encode(run_);
  run_.clear();
  if (ids.ok())
    ids_.insert(ids_.end(), ids->begin(), ids->end());
  else
    status_ = ids.error();
}

Result<std::vector<int32_t>> ChatPromptBuilder::finish() && {
  flush();
  TRY(status_);
  return std::move(ids_);
}

std::string joined_content(const ChatMessage& message, std::string_view separator) {
  std::string text;
  for (const std::string& part : message.content) {
    if (&part != &message.content.front()) text += separator;
    text += part;
  }
  return text;
}

}  // namespace ddtree
