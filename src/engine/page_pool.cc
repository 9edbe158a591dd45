#include "engine/page_pool.h"

#include <string>

namespace ddtree {

PagePool::PagePool(int32_t pages) : owners_(pages, 0) {
  CHECK_GE(pages, 0);
  free_.reserve(pages);
  for (int32_t p = pages - 1; p >= 0; --p) free_.push_back(p);
}

Status PagePool::extend(std::vector<int32_t>& list, int32_t pages) {
  const int64_t missing = pages - static_cast<int64_t>(list.size());
  if (missing > free_pages())
    return Error{Code::kExhausted, "the KV cache has " + std::to_string(free_pages()) + " of " +
                                       std::to_string(size()) + " pages free; " + std::to_string(missing) +
                                       " more are needed"};
  for (int64_t i = 0; i < missing; ++i) {
    list.push_back(free_.back());
    free_.pop_back();
    owners_[list.back()] = 1;
  }
  return {};
}

void PagePool::release(std::vector<int32_t>& list) {
  for (int32_t page : list) {
    CHECK_GT(owners_[page], 0);
    if (--owners_[page] == 0) free_.push_back(page);
  }
  list.clear();
}

void PagePool::share(int32_t page) {
  CHECK_GT(owners_[page], 0);
  ++owners_[page];
}

Status PagePool::check(std::span<const std::vector<int32_t>* const> lists) const {
  std::vector<int32_t> listed(owners_.size(), 0), free(owners_.size(), 0);
  for (const std::vector<int32_t>* list : lists)
    for (int32_t page : *list) ++listed[page];
  for (int32_t page : free_) ++free[page];
  for (size_t page = 0; page < listed.size(); ++page)
    if (listed[page] != owners_[page] || free[page] != (owners_[page] == 0 ? 1 : 0))
      return Error{Code::kCorrupt, "page " + std::to_string(page) + " is listed " + std::to_string(listed[page]) +
                                       " times and free " + std::to_string(free[page]) + " times, with " +
                                       std::to_string(owners_[page]) + " owners"};
  return {};
}

}  // namespace ddtree
