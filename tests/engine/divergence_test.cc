#include "engine/divergence.h"

#include <gtest/gtest.h>

namespace ddtree {
namespace {

DecodedText text(std::vector<int32_t> ids, FinishReason finish = FinishReason::kLength) {
  DecodedText out;
  for (int32_t id : ids) out.tokens.push_back({id, 0.25f * static_cast<float>(id), 1000u + id, {}});
  out.finish = finish;
  return out;
}

TEST(Divergence, NoneBetweenEqualTexts) { EXPECT_FALSE(first_divergence(text({1, 2, 3}), text({1, 2, 3}))); }

TEST(Divergence, IsTheFirstTokenThatDiffers) {
  const auto d = first_divergence(text({1, 2, 3}), text({1, 4, 5}));
  ASSERT_TRUE(d);
  EXPECT_EQ(d->token, 1u);
  EXPECT_EQ(d->expected, 2);
  EXPECT_EQ(d->got, 4);
  EXPECT_EQ(d->margin, 0.5f);
}

TEST(Divergence, SeesAnEndThatComesEarlyOrLate) {
  const auto early = first_divergence(text({1, 2}), text({1}));
  ASSERT_TRUE(early);
  EXPECT_EQ(early->expected, 2);
  EXPECT_EQ(early->got, -1);
  const auto late = first_divergence(text({1}), text({1, 2}));
  ASSERT_TRUE(late);
  EXPECT_EQ(late->expected, -1);
  EXPECT_EQ(late->got, 2);
}

TEST(Divergence, SeesAnotherReasonAndOtherLogits) {
  EXPECT_TRUE(first_divergence(text({1}, FinishReason::kStop), text({1}, FinishReason::kLength)));
  DecodedText other = text({1, 2});
  other.tokens[1].row_hash ^= 1;
  const auto d = first_divergence(text({1, 2}), other);
  ASSERT_TRUE(d);
  EXPECT_EQ(d->token, 1u);
}

}  // namespace
}  // namespace ddtree
