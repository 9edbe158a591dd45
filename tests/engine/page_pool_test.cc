#include "engine/page_pool.h"

#include <gtest/gtest.h>

namespace ddtree {
namespace {

TEST(PagePool, ExtendsAllOrNothing) {
  PagePool pool(4);
  std::vector<int32_t> a, b;
  EXPECT_TRUE(pool.extend(a, 3).ok());
  EXPECT_EQ(pool.extend(b, 2).error().code, Code::kExhausted);
  EXPECT_TRUE(b.empty());
  EXPECT_EQ(pool.free_pages(), 1);
  EXPECT_TRUE(pool.extend(a, 2).ok());  // never shrinks
  EXPECT_EQ(a.size(), 3u);
  pool.release(a);
  EXPECT_EQ(pool.free_pages(), 4);
}

TEST(PagePool, SharedPagesGoBackWithTheirLastOwner) {
  PagePool pool(2);
  std::vector<int32_t> a;
  ASSERT_TRUE(pool.extend(a, 1).ok());
  std::vector<int32_t> b = a;
  pool.share(a[0]);
  const std::vector<int32_t>* lists[] = {&a, &b};
  EXPECT_TRUE(pool.check(lists).ok());
  pool.release(a);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.release(b);
  EXPECT_EQ(pool.free_pages(), 2);
}

TEST(PagePool, CheckFindsALeakAndADoubleOwner) {
  PagePool pool(2);
  std::vector<int32_t> a;
  ASSERT_TRUE(pool.extend(a, 1).ok());
  EXPECT_EQ(pool.check({}).error().code, Code::kCorrupt);
  std::vector<int32_t> b = a;
  const std::vector<int32_t>* lists[] = {&a, &b};
  EXPECT_EQ(pool.check(lists).error().code, Code::kCorrupt);
  EXPECT_TRUE(pool.check(std::span(lists).first(1)).ok());
}

}  // namespace
}  // namespace ddtree
