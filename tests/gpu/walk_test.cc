// Walks on a GPU against those of the host, on sound and on malformed trees; the copies that commit them.
#include "backend/cuda/spec/walk.h"

#include <gtest/gtest.h>

#include <random>

#include "backend/batch.h"
#include "device_trees.h"
#include "spec/walk.h"

namespace ddtree::cuda {
namespace {

using testing::random_candidates;

// One stream before its walk.
struct Verified {
  Tree tree;
  std::vector<int32_t> sampled;
  int32_t context = 0;
  int32_t pages = 0;  // that it has
  int32_t rows = 0;   // what the pass says; of a sound one the tree's
};

Tree random_tree(std::mt19937& random) {
  const int slots = 1 + static_cast<int>(random() % kMaxDepth), k = 1 + static_cast<int>(random() % 12);
  Tree tree;
  build_tree(random_candidates(random, slots, k, 3).view(), 5, static_cast<int>(random() % 256),
             {.chain_first = random() % 2 == 0}, tree);
  return tree;
}

// What the target might say: mostly a child's token, so that walks get deep.
Verified random_stream(std::mt19937& random) {
  Verified v;
  v.tree = random_tree(random);
  v.sampled.assign(static_cast<size_t>(v.tree.size()), -7);
  for (size_t i = 1; i < v.sampled.size(); ++i)
    if (random() % 8 != 0) v.sampled[static_cast<size_t>(v.tree.parent[i])] = v.tree.token[i];
  v.context = static_cast<int32_t>(random() % 300);
  v.pages = (v.context + kMaxAccepted) / kPageRows + 1;
  v.rows = v.tree.rows;
  return v;
}

struct Outcome {
  std::vector<int32_t> status, length, row, committed, next, context;
  std::vector<RowCopy> copies;
};

constexpr int32_t kPageStride = 8;
int32_t page_id(size_t stream, int32_t page) { return 1000 + 16 * static_cast<int32_t>(stream) + page * 7 % 16; }
int32_t scratch_of(size_t stream) { return 500000 + 256 * static_cast<int32_t>(stream); }

template <class T>
void put(T* device, const std::vector<T>& host) {
  EXPECT_EQ(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
}

Outcome run_device(const std::vector<Verified>& streams) {
  const size_t n = streams.size();
  const auto count = static_cast<int32_t>(n);
  Poisoned memory(tree_arrays_bytes(count));
  const TreeArrays arrays = tree_arrays(memory.data(), count);
  std::vector<int32_t> token(n * kMaxRows), first = {0}, sampled, context, scratch, page_count;
  std::vector<int32_t> pages(n * kPageStride, -1);
  std::vector<int16_t> child(n * kMaxRows), sibling(n * kMaxRows);
  for (size_t s = 0; s < n; ++s) {
    const Verified& v = streams[s];
    for (size_t i = 0; i < kMaxRows; ++i) {
      token[s * kMaxRows + i] = v.tree.token[i];
      child[s * kMaxRows + i] = v.tree.first_child[i];
      sibling[s * kMaxRows + i] = v.tree.next_sibling[i];
    }
    sampled.insert(sampled.end(), v.sampled.begin(), v.sampled.end());
    first.push_back(first.back() + v.rows);
    context.push_back(v.context);
    scratch.push_back(scratch_of(s));
    page_count.push_back(v.pages);
    for (int32_t p = 0; p < std::min(v.pages, kPageStride); ++p)
      pages[s * kPageStride + static_cast<size_t>(p)] = page_id(s, p);
  }
  put(arrays.token, token), put(arrays.first_child, child), put(arrays.next_sibling, sibling);
  const Buffer firsts = upload(first), samples = upload(sampled), contexts = upload(context),
               scratches = upload(scratch), tables = upload(pages), counts = upload(page_count);
  Poisoned scalars(count * 4 * 4), rows(count * kMaxAccepted * 4), committed(count * kMaxAccepted * 4),
      copies(count * kMaxAccepted * 8);
  int32_t* at = scalars.data<int32_t>();
  const auto ints = [](const Buffer& b) { return static_cast<const int32_t*>(b.data()); };
  const WalkArgs args{
      arrays,
      ints(firsts),
      ints(samples),
      ints(contexts),
      ints(scratches),
      ints(tables),
      ints(counts),
      kPageStride,
      {at, at + n, rows.data<int32_t>(), committed.data<int32_t>(), at + 2 * n, at + 3 * n, copies.data<RowCopy>()},
      count};
  const Status status = run_walk(args, nullptr);
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (Poisoned* g : {&scalars, &rows, &committed, &copies}) g->expect_guards();
  const size_t lists = n * kMaxAccepted;
  return {download(args.out.status, n),        download(args.out.length, n), download(args.out.row, lists),
          download(args.out.committed, lists), download(args.out.next, n),   download(args.out.context, n),
          download(args.out.copies, lists)};
}

WalkStatus host_status(const Error& error) {
  if (error.message.find("links to row") != std::string::npos) return WalkStatus::kLinks;
  if (error.message.find("a path of more than") != std::string::npos) return WalkStatus::kDepth;
  return WalkStatus::kRows;
}

void expect_as_host(const std::vector<Verified>& streams) {
  const Outcome got = run_device(streams);
  int32_t first = 0;
  for (size_t s = 0; s < streams.size(); ++s) {
    SCOPED_TRACE(::testing::Message() << "stream " << s);
    const Verified& v = streams[s];
    const auto n = static_cast<size_t>(v.rows);
    const Result<Accepted> want = walk({std::span(v.tree.token).first(n), std::span(v.tree.first_child).first(n),
                                        std::span(v.tree.next_sibling).first(n)},
                                       std::span<const int32_t>(v.sampled));
    const WalkStatus status = want.ok() ? WalkStatus::kOk : host_status(want.error());
    ASSERT_EQ(got.status[s], static_cast<int32_t>(status)) << (want.ok() ? "" : want.error().message);
    const int32_t length = want.ok() ? want->length : 0;
    EXPECT_EQ(got.length[s], length);
    EXPECT_EQ(got.next[s], want.ok() ? want->next : -1);
    EXPECT_EQ(got.context[s], v.context + length);
    for (int32_t i = 0; i < kMaxAccepted; ++i) {
      const size_t at = s * kMaxAccepted + static_cast<size_t>(i);
      const bool in = i < length;
      const int32_t row = in ? want->path[static_cast<size_t>(i)] : -1, position = v.context + i;
      EXPECT_EQ(got.row[at], in ? first + row : -1);
      EXPECT_EQ(got.committed[at], in ? v.sampled[static_cast<size_t>(row)] : -1);
      EXPECT_EQ(got.copies[at].from, in ? scratch_of(s) + row : -1);
      EXPECT_EQ(got.copies[at].to, in ? page_id(s, position / kPageRows) * kPageRows + position % kPageRows : -1);
    }
    first += v.rows;
  }
}

TEST(WalkTiny, AsOnTheHost) {
  std::mt19937 random(1);
  expect_as_host({random_stream(random), random_stream(random), random_stream(random)});
}

TEST(Walk, AsOnTheHost) {
  std::mt19937 random(2);
  for (int round = 0; round < 60; ++round) {
    std::vector<Verified> streams;
    for (int s = 0; s < 40; ++s) streams.push_back(random_stream(random));
    expect_as_host(streams);
    if (HasFailure()) return;
  }
}

// Any links whatever: cycles, self links, numbers outside the tree.
void corrupt(std::mt19937& random, Verified& v) {
  for (unsigned changes = 1 + static_cast<unsigned>(random() % 20); changes > 0; --changes) {
    const size_t row = random() % static_cast<size_t>(v.rows);
    auto& links = random() % 2 == 0 ? v.tree.first_child : v.tree.next_sibling;
    const int kind = static_cast<int>(random() % 5);
    links[row] = static_cast<int16_t>(kind == 0   ? static_cast<int>(random() % 65536) - 32768
                                      : kind == 1 ? static_cast<int>(row)
                                      : kind == 2 ? v.rows
                                      : kind == 3 ? 0
                                                  : static_cast<int>(random() % static_cast<unsigned>(v.rows)));
  }
}

TEST(WalkTiny, MalformedLinks) {
  std::mt19937 random(3);
  std::vector<Verified> streams;
  for (int s = 0; s < 8; ++s) {
    streams.push_back(random_stream(random));
    corrupt(random, streams.back());
  }
  expect_as_host(streams);
}

TEST(Walk, MalformedLinks) {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    std::vector<Verified> streams;
    for (int s = 0; s < 40; ++s) {
      streams.push_back(random_stream(random));
      if (s % 3 != 0) corrupt(random, streams.back());
    }
    expect_as_host(streams);
    if (HasFailure()) return;
  }
}

TEST(WalkTiny, LongestSiblingListsAndPaths) {
  Verified list, path, deep;
  list.rows = path.rows = list.tree.rows = path.tree.rows = kMaxRows;
  list.sampled.assign(kMaxRows, 9999);
  path.sampled.assign(kMaxRows, 7);
  for (int16_t i = 0; i < kMaxRows; ++i) {
    const auto at = static_cast<size_t>(i);
    list.tree.token[at] = i, path.tree.token[at] = 7;
    list.tree.first_child[at] = i == 0 ? 1 : -1;
    list.tree.next_sibling[at] = static_cast<int16_t>(i == 0 || i + 1 == kMaxRows ? -1 : i + 1);
    path.tree.first_child[at] = static_cast<int16_t>(i + 1 == kMaxRows ? -1 : i + 1);
    path.tree.next_sibling[at] = -1;
  }
  list.sampled[0] = 255;  // the last of all siblings
  list.pages = path.pages = 1;
  deep = path;
  deep.tree.first_child[16] = -1;  // just deep enough
  expect_as_host({list, path, deep});
}

TEST(WalkTiny, StreamsWithoutRowsOrPages) {
  std::mt19937 random(5);
  Verified sound = random_stream(random), none = sound, homeless = sound, minus = sound;
  none.rows = 0;
  none.sampled.clear();
  homeless.pages = homeless.context / kPageRows;
  minus.context = -1;
  const Outcome got = run_device({sound, none, homeless, minus, sound});
  EXPECT_EQ(got.status, (std::vector<int32_t>{0, 3, 4, 4, 0}));
  EXPECT_EQ(got.context, (std::vector<int32_t>{sound.context + got.length[0], none.context, homeless.context, -1,
                                               sound.context + got.length[0]}));
  EXPECT_EQ(got.length[4], got.length[0]);
  for (size_t s = 1; s < 4; ++s)
    for (size_t i = 0; i < kMaxAccepted; ++i) EXPECT_EQ(got.copies[s * kMaxAccepted + i].from, -1);
}

// --- copies ---

void expect_copies(int layers, int rows, int row_bytes, const std::vector<RowCopy>& copies) {
  std::mt19937 random(6);
  const auto bytes = static_cast<size_t>(rows) * static_cast<size_t>(row_bytes), width = static_cast<size_t>(row_bytes);
  std::vector<std::vector<uint8_t>> before;
  std::vector<Poisoned> caches;
  std::vector<void*> pointers;
  for (int l = 0; l < layers; ++l) {
    before.emplace_back(bytes);
    for (uint8_t& b : before.back()) b = static_cast<uint8_t>(random());
    caches.emplace_back(static_cast<int64_t>(bytes));
    pointers.push_back(caches.back().data());
    put(caches.back().data<uint8_t>(), before.back());
  }
  const Buffer table = upload(pointers), list = upload(copies);
  const Status status = run_copy_rows({static_cast<void* const*>(table.data()), layers, rows, row_bytes,
                                       static_cast<const RowCopy*>(list.data()), static_cast<int32_t>(copies.size())},
                                      nullptr);
  ASSERT_TRUE(status.ok()) << status.error().message;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  for (size_t l = 0; l < caches.size(); ++l) {
    std::vector<uint8_t> want = before[l];
    for (const RowCopy& c : copies)
      if (c.from >= 0 && c.from < rows && c.to >= 0 && c.to < rows)
        std::copy_n(before[l].begin() + static_cast<int64_t>(c.from) * row_bytes, width,
                    want.begin() + static_cast<int64_t>(c.to) * row_bytes);
    EXPECT_TRUE(download(caches[l].data<uint8_t>(), bytes) == want) << "layer " << l;
    caches[l].expect_guards();
  }
}

TEST(CopyRowsTiny, ReadsBeforeItWrites) {
  expect_copies(2, 8, 48, {{0, 1}, {1, 0}, {2, 3}, {3, 4}, {4, 2}, {7, 7}});  // a swap, a cycle, itself
}

TEST(CopyRowsTiny, LeavesOutWhatIsNotARow) {
  expect_copies(1, 6, 16, {{-1, -1}, {0, 5}, {6, 1}, {1, 6}, {-1, 2}, {2, -7}, {1 << 30, 3}});
}

TEST(CopyRows, AllLayersAndManyRows) {
  std::mt19937 random(7);
  for (const auto& [layers, row_bytes, count] :
       {std::array{61, 1152, 272}, {6, 4096, 17}, {1, 16, 3072}, {3, 1040, 1}}) {
    const int rows = 2 * count + 5;
    std::vector<int32_t> to(static_cast<size_t>(rows));
    std::iota(to.begin(), to.end(), 0);
    std::shuffle(to.begin(), to.end(), random);
    std::vector<RowCopy> copies;
    for (int i = 0; i < count; ++i)
      copies.push_back({static_cast<int32_t>(random() % static_cast<unsigned>(rows)), to[static_cast<size_t>(i)]});
    expect_copies(layers, rows, row_bytes, copies);
  }
}

TEST(CopyRows, RefusesWhatDoesNotFit) {
  const auto run = [](int32_t row_bytes, int32_t count) {
    return run_copy_rows({nullptr, 1, 10, row_bytes, nullptr, count}, nullptr);
  };
  EXPECT_FALSE(run(24, 1).ok());
  EXPECT_FALSE(run(1152, 3073).ok());
  EXPECT_TRUE(run(1152, 0).ok());
}

}  // namespace
}  // namespace ddtree::cuda
