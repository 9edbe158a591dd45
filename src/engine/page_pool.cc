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

void PagePool::check(std::span<const std::vector<int32_t>* const> lists) const {
  std::vector<int32_t> seen(owners_.size(), 0);
  for (const std::vector<int32_t>* list : lists)
    for (int32_t page : *list) ++seen[page];
  for (size_t page = 0; page < seen.size(); ++page) CHECK_EQ(seen[page], owners_[page]);
  for (int32_t page : free_) {
    CHECK_EQ(owners_[page], 0);
    CHECK_EQ(seen[page]++, 0);  // listed as free once
  }
  for (size_t page = 0; page < seen.size(); ++page) CHECK_GT(seen[page], 0);
}

}  // namespace ddtree
