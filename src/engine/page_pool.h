// PagePool: who owns which page of 64 KV rows. Pure bookkeeping: no memory, no device. The target's cache and the
// drafter's share page ids. Pages may have several owners (a shared prefix); only whole, committed pages are ever
// shared, and shared pages are never written.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace ddtree {

class PagePool {
 public:
  explicit PagePool(int32_t pages);

  // Extends `list` to `pages` pages with fresh ones, all or nothing: kExhausted when too few are free.
  Status extend(std::vector<int32_t>& list, int32_t pages);
  // Gives back one ownership of each page and empties the list.
  void release(std::vector<int32_t>& list);
  // One more owner of a page that has one already.
  void share(int32_t page);
  int32_t owners(int32_t page) const { return owners_[page]; }

  int32_t size() const { return static_cast<int32_t>(owners_.size()); }
  int32_t free_pages() const { return static_cast<int32_t>(free_.size()); }

  // kCorrupt unless `lists` are exactly the owners: every listed page's count matches, and every other page is free
  // once.
  Status check(std::span<const std::vector<int32_t>* const> lists) const;

 private:
  std::vector<int32_t> free_;    // a stack: the last freed page is the next given out
  std::vector<int32_t> owners_;  // per page
};

}  // namespace ddtree
