#include "engine/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace ddtree {
namespace {

// `pages` pages of tokens, all of the value that `spelling` has for the page.
std::vector<int32_t> text(const std::vector<int32_t>& spelling) {
  std::vector<int32_t> tokens;
  for (int32_t value : spelling) tokens.insert(tokens.end(), kPageRows, value);
  return tokens;
}

class PrefixCacheTest : public testing::Test {
 protected:
  // As a stream does that ends: its pages are published and given back.
  std::vector<int32_t> publish(const std::vector<int32_t>& spelling, const std::string& salt = "", int observed = 99) {
    std::vector<int32_t> pages;
    EXPECT_TRUE(pool.extend(pages, static_cast<int32_t>(spelling.size())).ok());
    cache.put(salt, text(spelling), pages, observed);
    std::vector<int32_t> out = pages;
    pool.release(pages);
    check({});
    return out;
  }
  std::vector<int32_t> take(const std::vector<int32_t>& spelling, const std::string& salt = "", bool observed = true) {
    std::vector<int32_t> pages;
    EXPECT_EQ(cache.count(salt, text(spelling), observed), [&] {
      cache.take(salt, text(spelling), observed, pages);
      return std::ssize(pages);
    }());
    return pages;
  }
  void check(std::vector<const std::vector<int32_t>*> lists) {
    const std::vector<int32_t> kept = cache.pages();
    lists.push_back(&kept);
    const Status status = pool.check(lists);
    EXPECT_TRUE(status.ok()) << status.error().message;
  }

  PagePool pool{8};
  PrefixCache cache{pool};
};

TEST_F(PrefixCacheTest, FindsTheLongestKnownBeginningInWholePages) {
  const std::vector<int32_t> pages = publish({1, 2, 3});
  EXPECT_EQ(pool.free_pages(), 5);
  std::vector<int32_t> tokens = text({1, 2, 3});
  for (const auto& [length, found] : std::vector<std::pair<int, int>>{{0, 0}, {63, 0}, {64, 1}, {127, 1}, {192, 3}})
    EXPECT_EQ(cache.count("", std::span(tokens).first(length), true), found) << length;
  tokens[130] = 4;  // in the third page
  EXPECT_EQ(cache.count("", tokens, true), 2);
  EXPECT_EQ(cache.count("", text({2, 3}), true), 0);  // the same page, after another beginning
  std::vector<int32_t> taken = take({1, 2, 4});
  EXPECT_EQ(taken, std::vector<int32_t>(pages.begin(), pages.begin() + 2));
  check({&taken});
  pool.release(taken);
}

TEST_F(PrefixCacheTest, SaltsNeverMeet) {
  publish({1}, "alice");
  EXPECT_EQ(cache.count("bob", text({1}), true), 0);
  EXPECT_EQ(cache.count("", text({1}), true), 0);
  const std::vector<int32_t> bobs = publish({1}, "bob");
  std::vector<int32_t> taken = take({1}, "bob");
  EXPECT_EQ(taken, bobs);
  pool.release(taken);
  EXPECT_EQ(cache.pages().size(), 2u);
}

TEST_F(PrefixCacheTest, APageTheDrafterHasNotSeenServesOnlyThoseWhoDoNotDraft) {
  publish({1, 2, 3}, "", 1);
  EXPECT_EQ(cache.count("", text({1, 2, 3}), true), 1);
  EXPECT_EQ(cache.count("", text({1, 2, 3}), false), 3);
  const std::vector<int32_t> seen = publish({1, 2, 3}, "", 2);  // its second page replaces the unseen one
  EXPECT_EQ(cache.count("", text({1, 2, 3}), true), 2);
  std::vector<int32_t> taken = take({1, 2});
  EXPECT_EQ(taken[1], seen[1]);
  pool.release(taken);
  EXPECT_EQ(pool.free_pages(), 5);
}

// Two texts computed side by side: one page is enough.
TEST_F(PrefixCacheTest, TheSameRowsTwiceBecomeOnePage) {
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pool.extend(first, 2).ok());
  ASSERT_TRUE(pool.extend(second, 2).ok());
  cache.put("", text({1, 2}), first, 2);
  cache.put("", text({1, 3}), second, 2);
  EXPECT_EQ(second[0], first[0]);
  EXPECT_NE(second[1], first[1]);
  check({&first, &second});
  EXPECT_EQ(pool.free_pages(), 5);
  pool.release(first);
  pool.release(second);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedGoesFirstLeavesBeforeTheirParents) {
  publish({1, 2});
  publish({1, 3});
  publish({4});
  EXPECT_EQ(cache.evictable(), 4);
  std::vector<int32_t> taken = take({1, 2});
  pool.release(taken);
  cache.evict(1);
  EXPECT_EQ(cache.count("", text({1, 3}), true), 1);
  cache.evict(1);
  EXPECT_EQ(cache.count("", text({4}), true), 0);
  cache.evict(1);
  EXPECT_EQ(cache.count("", text({1, 2}), true), 1);
  cache.evict(5);
  EXPECT_EQ(pool.free_pages(), 8);
  EXPECT_TRUE(cache.pages().empty());
}

TEST_F(PrefixCacheTest, APageInUseStays) {
  publish({1, 2});
  publish({3});
  std::vector<int32_t> taken = take({1});
  EXPECT_EQ(cache.evictable(), 2);
  cache.evict(8);
  EXPECT_EQ(cache.count("", text({1, 2}), true), 1);
  EXPECT_EQ(pool.free_pages(), 7);
  check({&taken});
  cache.clear();
  EXPECT_EQ(cache.count("", text({1}), true), 0);
  check({&taken});
  pool.release(taken);
  EXPECT_EQ(pool.free_pages(), 8);
}

// Against a model that keeps whole texts: what is found is the longest beginning that any of them has and that has not
// been evicted; and no page is ever lost or owned by nobody.
TEST(PrefixCacheProperty, AgreesWithAListOfTexts) {
  for (int seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    PagePool pool(64);
    PrefixCache cache(pool);
    std::set<std::pair<std::string, std::vector<int32_t>>> known;  // every beginning that was published
    std::vector<std::vector<int32_t>> held;
    for (int step = 0; step < 200; ++step) {
      const std::string salt = pick(0, 1) ? "a" : "b";
      std::vector<int32_t> spelling(pick(1, 5));
      for (int32_t& value : spelling) value = pick(0, 2);
      size_t longest = 0;
      for (size_t n = 1; n <= spelling.size(); ++n)
        if (known.contains({salt, {spelling.begin(), spelling.begin() + n}})) longest = n;
      ASSERT_EQ(cache.count(salt, text(spelling), true), static_cast<int32_t>(longest));
      std::vector<int32_t> pages;
      cache.take(salt, text(spelling), true, pages);
      const auto need = static_cast<int32_t>(spelling.size());
      const auto missing = need - static_cast<int32_t>(pages.size()) - pool.free_pages();
      if (missing > 0) {
        cache.evict(missing);
        std::erase_if(known, [&](const auto& entry) {
          return cache.count(entry.first, text(entry.second), true) < std::ssize(entry.second);
        });
      }
      if (pool.extend(pages, need).ok()) {
        cache.put(salt, text(spelling), pages, need);
        for (size_t n = 1; n <= spelling.size(); ++n)
          known.insert({salt, {spelling.begin(), spelling.begin() + static_cast<int>(n)}});
      }
      held.push_back(pages);
      while (held.size() > 8) {
        std::swap(held[pick(0, 8)], held.back());
        pool.release(held.back());
        held.pop_back();
      }
      std::vector<const std::vector<int32_t>*> lists;
      for (const auto& list : held) lists.push_back(&list);
      const std::vector<int32_t> kept = cache.pages();
      lists.push_back(&kept);
      ASSERT_TRUE(pool.check(lists).ok());
    }
  }
}

}  // namespace
}  // namespace ddtree
