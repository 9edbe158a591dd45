#include "engine/prefix_cache.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace ddtree {
namespace {

uint64_t hash_of(int32_t parent, std::span<const int32_t> tokens) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return std::hash<std::string_view>()(bytes) + static_cast<uint64_t>(parent) * 0x9e3779b97f4a7c15u;
}

std::span<const int32_t> page_of(std::span<const int32_t> tokens, size_t page) {
  return tokens.subspan(page * kPageRows, kPageRows);
}

}  // namespace

int32_t PrefixCache::root(const std::string& salt) const {
  const auto it = roots_.find(salt);
  return it == roots_.end() ? kNone : it->second;
}

int32_t PrefixCache::find(int32_t parent, std::span<const int32_t> tokens) const {
  const auto [first, last] = by_tokens_.equal_range(hash_of(parent, tokens));
  for (auto it = first; it != last; ++it) {
    const Node& node = nodes_[it->second];
    if (node.parent == parent && std::equal(tokens.begin(), tokens.end(), node.tokens.begin())) return it->second;
  }
  return kNone;
}

int32_t PrefixCache::count(const std::string& salt, std::span<const int32_t> tokens, bool observed) const {
  const auto whole = static_cast<int32_t>(tokens.size() / kPageRows);
  int32_t node = root(salt), pages = 0;
  for (; node != kNone && pages < whole; ++pages) {
    node = find(node, page_of(tokens, pages));
    if (node == kNone || (observed && !nodes_[node].observed)) break;
  }
  return pages;
}

void PrefixCache::take(const std::string& salt, std::span<const int32_t> tokens, bool observed,
                       std::vector<int32_t>& pages) {
  const int32_t known = count(salt, tokens, observed);
  int32_t node = root(salt);
  for (int32_t i = 0; i < known; ++i) {
    node = find(node, page_of(tokens, i));
    pool_.share(nodes_[node].page);
    pages.push_back(nodes_[node].page);
  }
  if (known > 0) touch(node);
}

void PrefixCache::put(const std::string& salt, std::span<const int32_t> tokens, std::span<int32_t> pages,
                      int32_t observed) {
  CHECK_EQ(tokens.size(), pages.size() * kPageRows);
  if (pages.empty()) return;
  int32_t node = root(salt);
  if (node == kNone) {
    Node fresh;
    fresh.salt = salt;
    node = roots_[salt] = add(std::move(fresh));
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    const bool seen = static_cast<int32_t>(i) < observed;
    const int32_t known = find(node, page_of(tokens, i));
    if (known == kNone) {
      node = add_page(node, page_of(tokens, i), pages[i], seen);
      continue;
    }
    node = known;
    if (nodes_[node].page == pages[i]) {
      nodes_[node].observed |= seen;
    } else if (seen && !nodes_[node].observed) {
      replace(nodes_[node].page, pages[i]);
      nodes_[node].observed = true;
    } else {
      replace(pages[i], nodes_[node].page);
    }
  }
  touch(node);
}

void PrefixCache::replace(int32_t& page, int32_t by) {
  pool_.share(by);
  std::vector<int32_t> old = {std::exchange(page, by)};
  pool_.release(old);
}

int32_t PrefixCache::add(Node node) {
  if (free_nodes_.empty()) {
    nodes_.push_back(std::move(node));
    return static_cast<int32_t>(nodes_.size()) - 1;
  }
  const int32_t id = free_nodes_.back();
  free_nodes_.pop_back();
  nodes_[id] = std::move(node);
  return id;
}

int32_t PrefixCache::add_page(int32_t parent, std::span<const int32_t> tokens, int32_t page, bool observed) {
  pool_.share(page);
  Node node;
  node.parent = parent;
  node.page = page;
  node.observed = observed;
  std::copy(tokens.begin(), tokens.end(), node.tokens.begin());
  const int32_t id = add(std::move(node));
  nodes_[id].use = by_use_.insert(by_use_.begin(), id);
  by_tokens_.emplace(hash_of(parent, tokens), id);
  ++nodes_[parent].children;
  return id;
}

void PrefixCache::remove(int32_t id) {
  Node& node = nodes_[id];
  CHECK_EQ(node.children, 0);
  const int32_t parent = node.parent;
  if (parent == kNone) {
    roots_.erase(node.salt);
  } else {
    const auto [first, last] = by_tokens_.equal_range(hash_of(parent, node.tokens));
    by_tokens_.erase(std::find_if(first, last, [&](const auto& entry) { return entry.second == id; }));
    by_use_.erase(node.use);
    std::vector<int32_t> page = {node.page};
    pool_.release(page);
  }
  node = Node();
  free_nodes_.push_back(id);
  if (parent == kNone) return;
  --nodes_[parent].children;
  if (nodes_[parent].children == 0 && nodes_[parent].parent == kNone) remove(parent);
}

void PrefixCache::touch(int32_t id) {
  for (; nodes_[id].parent != kNone; id = nodes_[id].parent) by_use_.splice(by_use_.begin(), by_use_, nodes_[id].use);
}

// A node is at least as young as its descendants, so one pass from the oldest on meets children before their parents.
void PrefixCache::evict(int32_t pages) {
  const int32_t enough = pool_.free_pages() + pages;
  for (auto it = by_use_.end(); it != by_use_.begin() && pool_.free_pages() < enough;) {
    const int32_t id = *--it;
    if (nodes_[id].children > 0 || pool_.owners(nodes_[id].page) > 1) continue;
    ++it;
    remove(id);
  }
}

int32_t PrefixCache::evictable() const {
  return static_cast<int32_t>(
      std::count_if(by_use_.begin(), by_use_.end(), [&](int32_t id) { return pool_.owners(nodes_[id].page) == 1; }));
}

void PrefixCache::clear() {
  while (!by_use_.empty()) {
    auto leaf = std::find_if(by_use_.rbegin(), by_use_.rend(), [&](int32_t id) { return nodes_[id].children == 0; });
    remove(*leaf);
  }
}

std::vector<int32_t> PrefixCache::pages() const {
  std::vector<int32_t> out;
  for (int32_t id : by_use_) out.push_back(nodes_[id].page);
  return out;
}

}  // namespace ddtree
