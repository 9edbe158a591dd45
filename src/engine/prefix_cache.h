// PrefixCache: committed pages that outlive their streams, found again by the tokens they hold. A tree of pages: a node
// is 64 tokens after its parent's, so the path from a root spells the beginning of a text. Roots differ by salt: texts
// of one salt never meet those of another. Tokens are compared, hashes only find them.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/batch.h"
#include "engine/page_pool.h"

namespace ddtree {

class PrefixCache {
 public:
  explicit PrefixCache(PagePool& pool) : pool_(pool) {}

  // Appends to `pages` those of the longest known beginning of `tokens`, whole pages only, with one more owner each.
  // `observed`: only pages whose rows are in the drafter's context too.
  void take(const std::string& salt, std::span<const int32_t> tokens, bool observed, std::vector<int32_t>& pages);
  // How many pages take() would append.
  int32_t count(const std::string& salt, std::span<const int32_t> tokens, bool observed) const;

  // Keeps `pages`, which hold the rows of `tokens`; the first `observed` of them are in the drafter's context too.
  // Where the same rows are known, the caller gets that page for its own.
  void put(const std::string& salt, std::span<const int32_t> tokens, std::span<int32_t> pages, int32_t observed);

  // Lets go of the pages that nobody has asked for the longest until `pages` more are free, as far as that is possible:
  // a page that a stream holds stays.
  void evict(int32_t pages);
  int32_t evictable() const;  // at most so many
  void clear();

  std::vector<int32_t> pages() const;  // one entry per ownership

 private:
  static constexpr int32_t kNone = -1;
  using Tokens = std::array<int32_t, kPageRows>;

  struct Node {
    int32_t parent = kNone;
    int32_t children = 0;
    int32_t page = kNone;  // a root has none
    bool observed = false;
    Tokens tokens = {};
    std::string salt;                  // of a root
    std::list<int32_t>::iterator use;  // in by_use_, but for roots
  };

  int32_t root(const std::string& salt) const;
  int32_t find(int32_t parent, std::span<const int32_t> tokens) const;
  int32_t add(Node node);
  int32_t add_page(int32_t parent, std::span<const int32_t> tokens, int32_t page, bool observed);
  void remove(int32_t node);
  void replace(int32_t& page, int32_t by);  // one ownership by another
  void touch(int32_t node);                 // with its ancestors, so that none of them ages before it

  PagePool& pool_;
  std::vector<Node> nodes_;
  std::vector<int32_t> free_nodes_;
  std::map<std::string, int32_t> roots_;
  std::unordered_multimap<uint64_t, int32_t> by_tokens_;  // hash of parent and tokens
  std::list<int32_t> by_use_;                             // the latest first
};

}  // namespace ddtree
