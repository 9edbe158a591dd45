// Draft trees on a GPU: bit for bit those of the host's builder, and laid out as the host would.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "device_trees.h"

namespace ddtree::cuda {
namespace {

using testing::Candidates;
using testing::random_candidates;
using testing::rounding_candidates;
using testing::tied_candidates;

void expect_equal_to_host(const std::vector<Draft>& drafts, bool with_lse = false) {
  DeviceTrees device(drafts, with_lse);
  const HostArrays got = device.read();
  for (size_t s = 0; s < drafts.size(); ++s) {
    const Draft& d = drafts[s];
    SCOPED_TRACE(::testing::Message() << "stream " << s << " of " << drafts.size() << ": " << d.candidates.slots
                                      << " slots, " << d.candidates.k << " candidates, budget " << d.budget
                                      << ", depth " << d.options.max_depth << ", chain " << d.options.chain_first);
    const Tree want = host_tree(d, static_cast<int>(s));
    expect_same(got.tree(s), want);
    if (::testing::Test::HasFailure()) return;
    std::vector<AncestorWords> words(static_cast<size_t>(want.rows));
    ancestor_words(want, words);
    double floor = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < words.size(); ++i) {
      ASSERT_EQ(got.ancestors[s * kMaxRows + i], words[i]) << "node " << i;
      if (i == 0) continue;
      floor = std::min(floor, want.log_prob[i]);
      ASSERT_EQ(got.floor[s * kMaxRows + i], floor) << "node " << i;
    }
  }
}

// A drafter that is sure at first and less so with every slot.
Candidates peaked_candidates(std::mt19937& random, int slots, int k) {
  Candidates c(slots, k);
  std::uniform_real_distribution<float> noise(0.5f, 1.5f);
  for (int s = 0; s < slots; ++s) {
    const float top = 0.9f * std::pow(0.95f, static_cast<float>(s));
    for (int r = 0; r < k; ++r)
      c.log_prob[static_cast<size_t>(s * k + r)] =
          r == 0 ? std::log(top) : std::log((1 - top) / 2 * noise(random)) - 1.3f * std::log(static_cast<float>(r));
  }
  c.sort();
  return c;
}

// Kind 0 … 6; the last two break the rules that a drafter keeps.
Candidates candidates_of(int kind, std::mt19937& random, int slots, int k) {
  const auto coin = [&random](unsigned n) { return random() % n; };
  if (kind == 0) return random_candidates(random, slots, k, 0.2f + static_cast<float>(coin(40)) / 8);
  if (kind == 1) return peaked_candidates(random, slots, k);
  if (kind == 2) return tied_candidates(random, slots, k, static_cast<int>(coin(40)));
  if (kind == 3) return rounding_candidates(random, slots, k);
  Candidates c = random_candidates(random, slots, k, 2);
  if (kind == 4)
    for (float& x : c.log_prob) x = std::round(x * 16) / 16;
  if (kind == 5)
    for (float& x : c.log_prob)
      if (coin(3) == 0) x = coin(2) == 0 ? -0.0f : 0.0f;
  const float inf = std::numeric_limits<float>::infinity();
  const float special[] = {-inf, std::nanf(""), inf, -0.0f, 1e-40f, -1e-40f, -3e38f, 1.5f};
  if (kind == 6)
    for (unsigned i = coin(5); i <= 4; ++i)
      c.log_prob[coin(static_cast<unsigned>(c.log_prob.size()))] = special[coin(8)];
  return c;
}
constexpr int kKinds = 7;

std::vector<Draft> random_drafts(std::mt19937& random, int streams) {
  std::vector<Draft> drafts;
  for (int i = 0; i < streams; ++i) {
    const int slots = 1 + static_cast<int>(random() % kMaxDepth), k = 1 + static_cast<int>(random() % kMaxRanks);
    TreeOptions options;
    options.chain_first = random() % 4 == 0;
    if (random() % 5 == 0) options.max_depth = static_cast<int>(random() % 20) - 1;
    const int kind = static_cast<int>(random() % kKinds);
    drafts.push_back({candidates_of(kind, random, slots, k), static_cast<int>(random() % (kMaxNodes + 1)), options});
  }
  return drafts;
}

TEST(TreesTiny, EqualTheHosts) {
  std::mt19937 random(1);
  expect_equal_to_host(random_drafts(random, 6));
  expect_equal_to_host({{random_candidates(random, 3, 4, 1), 9, {}}, {tied_candidates(random, 16, 64, 1), 30, {}}});
}

TEST(Trees, EqualTheHostsForAllKinds) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    expect_equal_to_host(random_drafts(random, 40));
    if (HasFailure()) return;
  }
}

TEST(Trees, EqualTheHostsAtAllExtremes) {
  std::mt19937 random(3);
  for (const int slots : {1, 2, 7, 15, 16})
    for (const int k : {1, 2, 31, 32, 33, 63, 64}) {
      std::vector<Draft> drafts;
      for (const int budget : {-1, 0, 1, 2, 8, 31, 32, 33, 63, 64, 65, 127, 128, 129, 254, 255})
        for (const bool chain : {false, true})
          for (const int kind : {0, 1, 2}) drafts.push_back({candidates_of(kind, random, slots, k), budget, {chain}});
      expect_equal_to_host(drafts);
      if (HasFailure()) return;
    }
}

TEST(Trees, EveryCandidateEqual) {
  std::vector<Draft> drafts;
  for (const float value : {0.0f, -0.0f, -0.1f, -1.0f, -100.0f})
    for (const int slots : {1, 4, 16})
      for (const bool chain : {false, true}) {
        Candidates c(slots, 64);
        std::fill(c.log_prob.begin(), c.log_prob.end(), value);
        drafts.push_back({c, 255, {chain}});
      }
  expect_equal_to_host(drafts);
}

TEST(Trees, NothingToDraftIsARoot) {
  std::mt19937 random(4);
  Candidates none(3, 4);
  std::fill(none.log_prob.begin(), none.log_prob.end(), std::nanf(""));
  expect_equal_to_host({{random_candidates(random, 3, 4, 1), 0, {}},
                        {random_candidates(random, 3, 4, 1), 9, {false, 0}},
                        {random_candidates(random, 3, 4, 1), 9, {true, -3}},
                        {none, 9, {}}});
  expect_equal_to_host({{Candidates(0, 0), 9, {}}});
}

// A candidate's log-probability is its logit less the slot's log-sum, rounded to float32 as on the host.
TEST(Trees, SubtractLogSums) {
  std::mt19937 random(5);
  const int slots = 7, k = 16;
  std::normal_distribution<float> normal(10, 3);
  Candidates logits(slots, k), c(slots, k);
  for (float& x : logits.log_prob) x = normal(random);
  logits.sort();
  std::vector<float> lse(slots);
  for (size_t s = 0; s < slots; ++s) {
    lse[s] = 21.7f + normal(random);
    for (size_t r = 0; r < k; ++r) c.log_prob[s * k + r] = logits.log_prob[s * k + r] - lse[s];
  }
  Tree want;
  build_tree(c.view(), 70, 60, {}, want);
  const Buffer value = upload(logits.log_prob), id = upload(logits.id), sums = upload(lse);
  const Buffer request = upload(std::vector<TreeRequest>{{70, 60, slots, k, 0}});
  Poisoned memory(tree_arrays_bytes(1));
  const TreeArrays out = tree_arrays(memory.data(), 1);
  ASSERT_TRUE(run_build_trees(1,
                              {static_cast<const float*>(value.data()), static_cast<const int32_t*>(id.data()),
                               static_cast<const float*>(sums.data()), slots, k},
                              static_cast<const TreeRequest*>(request.data()), out, nullptr)
                  .ok());
  expect_same(HostArrays(out, 1).tree(0), want);
}

TEST(Trees, RefusesTablesBeyondTheLimits) {
  for (const auto& [slots, k] : {std::pair{17, 4}, {4, 65}, {-1, 4}, {4, -1}}) {
    const Status status = run_build_trees(1, {nullptr, nullptr, nullptr, slots, k}, nullptr, {}, nullptr);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.error().message.find("16 and 64"), std::string::npos);
  }
}

// --- rows of a pass ---

void expect_laid_out(const std::vector<Draft>& drafts, int max_rows) {
  SCOPED_TRACE(::testing::Message() << drafts.size() << " streams, " << max_rows << " rows");
  const size_t streams = drafts.size(), n = static_cast<size_t>(max_rows);
  DeviceTrees device(drafts);
  std::vector<int32_t> context, scratch;
  std::vector<Tree> trees;
  std::vector<const Tree*> views;
  for (size_t s = 0; s < streams; ++s) {
    context.push_back(static_cast<int32_t>(100 * s));
    scratch.push_back(static_cast<int32_t>(5000 + 256 * s));
    trees.push_back(host_tree(drafts[s], static_cast<int>(s)));
  }
  for (const Tree& tree : trees) views.push_back(&tree);
  const std::vector<int> keep = trim_to_rows(views, max_rows);

  const Buffer contexts = upload(context), scratches = upload(scratch);
  Poisoned first(static_cast<int64_t>(streams + 1) * 4), token(max_rows * 4), position(max_rows * 4),
      kv_row(max_rows * 4), ancestors(max_rows * 32);
  LayOutArgs args{device.arrays(),
                  static_cast<const int32_t*>(contexts.data()),
                  static_cast<const int32_t*>(scratches.data()),
                  777,
                  {first.data<int32_t>(), token.data<int32_t>(), position.data<int32_t>(), kv_row.data<int32_t>(),
                   ancestors.data<AncestorWords>()},
                  static_cast<int32_t>(streams),
                  max_rows};
  ASSERT_TRUE(run_lay_out_trees(args, nullptr).ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (Poisoned* g : {&first, &token, &position, &kv_row, &ancestors}) g->expect_guards();

  std::vector<int32_t> want_first = {0}, want_token, want_position, want_kv;
  std::vector<AncestorWords> want_ancestors;
  HostArrays got = device.read();
  for (size_t s = 0; s < streams; ++s) {
    trim(trees[s], keep[s]);
    got.rows[s] = keep[s] + 1;
    expect_same(got.tree(s), trees[s]);
    std::vector<AncestorWords> words(static_cast<size_t>(trees[s].rows));
    ancestor_words(trees[s], words);
    want_ancestors.insert(want_ancestors.end(), words.begin(), words.end());
    for (int i = 0; i < trees[s].rows; ++i) {
      want_token.push_back(trees[s].token[static_cast<size_t>(i)]);
      want_position.push_back(context[s] + trees[s].depth[static_cast<size_t>(i)]);
      want_kv.push_back(scratch[s] + i);
    }
    want_first.push_back(static_cast<int32_t>(want_token.size()));
  }
  want_token.resize(n, -1), want_position.resize(n, 0), want_kv.resize(n, 777), want_ancestors.resize(n);
  EXPECT_EQ(download(args.out.first_row, streams + 1), want_first);
  EXPECT_EQ(download(args.out.token, n), want_token);
  EXPECT_EQ(download(args.out.position, n), want_position);
  EXPECT_EQ(download(args.out.kv_row, n), want_kv);
  EXPECT_EQ(download(args.out.ancestors, n), want_ancestors);
}

TEST(TreesTiny, LayOut) {
  std::mt19937 random(6);
  const std::vector<Draft> drafts = {{random_candidates(random, 3, 4, 1), 9, {}},
                                     {tied_candidates(random, 4, 4, 1), 7, {}}};
  for (const int rows : {2, 9, 18, 40}) expect_laid_out(drafts, rows);
}

TEST(Trees, TrimsToRowsAsTheHost) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    const int streams = 1 + static_cast<int>(random() % (round % 10 == 0 ? 80 : 20));
    const std::vector<Draft> drafts = random_drafts(random, streams);
    for (const int rows : {streams, streams + 1, 2 * streams + 3, 24 * streams, 1088, 256 * streams})
      if (rows >= streams) expect_laid_out(drafts, rows);
    if (HasFailure()) return;
  }
}

// Equal scores everywhere: the lower tree keeps its nodes.
TEST(Trees, TrimsTiesToTheLowerTree) {
  std::mt19937 random(8);
  for (const int rows : {16, 17, 100, 1088, 2000}) {
    std::vector<Draft> drafts;
    for (int s = 0; s < 16; ++s) drafts.push_back({tied_candidates(random, 3, 64, s % 3), 255, {s % 4 == 3}});
    expect_laid_out(drafts, rows);
  }
}

TEST(Trees, RefusesFewerRowsThanStreams) {
  LayOutArgs args;
  args.streams = 3, args.max_rows = 2;
  EXPECT_FALSE(run_lay_out_trees(args, nullptr).ok());
}

}  // namespace
}  // namespace ddtree::cuda
