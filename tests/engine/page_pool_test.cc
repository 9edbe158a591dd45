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
  pool.check(lists);
  pool.release(a);
  EXPECT_EQ(pool.free_pages(), 1);
  pool.release(b);
  EXPECT_EQ(pool.free_pages(), 2);
}

using PagePoolDeath = testing::Test;

TEST(PagePoolDeath, CheckFindsALeakAndADoubleOwner) {
  PagePool pool(2);
  std::vector<int32_t> a;
  ASSERT_TRUE(pool.extend(a, 1).ok());
  EXPECT_DEATH(pool.check({}), "vs 1");
  std::vector<int32_t> b = a;
  const std::vector<int32_t>* lists[] = {&a, &b};
  EXPECT_DEATH(pool.check(lists), "2 vs 1");
}

}  // namespace
}  // namespace ddtree
