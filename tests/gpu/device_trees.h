// Draft trees on a GPU for tests: inputs up, poisoned outputs between guards, results down as Tree.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "../spec/reference_tree.h"
#include "backend/cuda/device_memory.h"
#include "backend/cuda/spec/trees.h"

namespace ddtree::cuda {

template <class T>
Buffer upload(const std::vector<T>& host) {
  const auto bytes = static_cast<int64_t>(host.size() * sizeof(T));
  Result<Buffer> buffer = allocate_device(std::max<int64_t>(16, bytes), "a test");
  EXPECT_TRUE(buffer.ok());
  EXPECT_EQ(cudaMemcpy(buffer->data(), host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  return *std::move(buffer);
}

template <class T>
std::vector<T> download(const T* device, size_t count) {
  std::vector<T> host(count);
  EXPECT_EQ(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
  return host;
}

// Device memory full of 0xff with a guard on either side.
class Poisoned {
 public:
  explicit Poisoned(int64_t bytes)
      : bytes_(bytes), memory_(upload(std::vector<uint8_t>(static_cast<size_t>(bytes + 2 * kGuard), 0xff))) {}
  template <class T = uint8_t>
  T* data() {
    return reinterpret_cast<T*>(static_cast<uint8_t*>(memory_.data()) + kGuard);
  }
  void expect_guards() const {
    const std::vector<uint8_t> all =
        download(static_cast<const uint8_t*>(memory_.data()), static_cast<size_t>(bytes_ + 2 * kGuard));
    const auto poisoned = [](uint8_t b) { return b == 0xff; };
    EXPECT_TRUE(std::all_of(all.begin(), all.begin() + kGuard, poisoned));
    EXPECT_TRUE(std::all_of(all.end() - kGuard, all.end(), poisoned));
  }

 private:
  static constexpr int64_t kGuard = 4096;
  int64_t bytes_;
  Buffer memory_;
};

// One stream's candidates and what it asks for; the root's token is 70 + its index.
struct Draft {
  testing::Candidates candidates;
  int budget = 0;
  TreeOptions options;
};

inline Tree host_tree(const Draft& draft, int stream) {
  Tree tree;
  build_tree(draft.candidates.view(), 70 + stream, draft.budget, draft.options, tree);
  return tree;
}

// The arrays of all streams, read back.
struct HostArrays {
  std::vector<int32_t> rows, token;
  std::vector<int16_t> parent, depth, rank, first_child, next_sibling;
  std::vector<double> log_prob, floor;
  std::vector<AncestorWords> ancestors;

  HostArrays(const TreeArrays& d, size_t streams) {
    const size_t n = streams * kMaxRows;
    rows = download(d.rows, streams), token = download(d.token, n);
    parent = download(d.parent, n), depth = download(d.depth, n), rank = download(d.rank, n);
    first_child = download(d.first_child, n), next_sibling = download(d.next_sibling, n);
    log_prob = download(d.log_prob, n), floor = download(d.floor, n), ancestors = download(d.ancestors, n);
  }
  Tree tree(size_t stream) const {
    Tree tree;
    tree.rows = rows[stream];
    for (size_t i = 0; i < static_cast<size_t>(std::clamp(tree.rows, 0, kMaxRows)); ++i) {
      const size_t at = stream * kMaxRows + i;
      tree.token[i] = token[at], tree.parent[i] = parent[at], tree.depth[i] = depth[at], tree.rank[i] = rank[at];
      tree.first_child[i] = first_child[at], tree.next_sibling[i] = next_sibling[at];
      tree.log_prob[i] = log_prob[at];
    }
    return tree;
  }
};

// Trees of streams of different shapes, built in one launch. What a stream does not use of the table is NaN.
class DeviceTrees {
 public:
  explicit DeviceTrees(const std::vector<Draft>& drafts, bool with_lse = false)
      : streams_(drafts.size()), memory_(tree_arrays_bytes(static_cast<int32_t>(drafts.size()))) {
    DraftTable table;
    for (const Draft& d : drafts) {
      table.slots = std::max(table.slots, d.candidates.slots);
      table.k = std::max(table.k, d.candidates.k);
    }
    const auto slots = static_cast<size_t>(table.slots), k = static_cast<size_t>(table.k);
    std::vector<float> value(streams_ * slots * k, std::numeric_limits<float>::quiet_NaN());
    std::vector<int32_t> id(value.size(), -5);
    std::vector<TreeRequest> requests;
    for (size_t s = 0; s < streams_; ++s) {
      const testing::Candidates& c = drafts[s].candidates;
      for (size_t slot = 0; slot < static_cast<size_t>(c.slots); ++slot)
        for (size_t r = 0; r < static_cast<size_t>(c.k); ++r) {
          value[(s * slots + slot) * k + r] = c.log_prob[slot * static_cast<size_t>(c.k) + r];
          id[(s * slots + slot) * k + r] = c.id[slot * static_cast<size_t>(c.k) + r];
        }
      requests.push_back({70 + static_cast<int32_t>(s), drafts[s].budget,
                          std::min(c.slots, drafts[s].options.max_depth), c.k, drafts[s].options.chain_first});
    }
    const Buffer values = upload(value), ids = upload(id), asked = upload(requests);
    const Buffer lse = upload(std::vector<float>(streams_ * slots, 0.0f));
    table.value = static_cast<const float*>(values.data());
    table.id = static_cast<const int32_t*>(ids.data());
    if (with_lse) table.lse = static_cast<const float*>(lse.data());
    const Status status = run_build_trees(static_cast<int32_t>(streams_), table,
                                          static_cast<const TreeRequest*>(asked.data()), arrays(), nullptr);
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    memory_.expect_guards();
  }
  TreeArrays arrays() { return tree_arrays(memory_.data(), static_cast<int32_t>(streams_)); }
  HostArrays read() { return HostArrays(arrays(), streams_); }

 private:
  size_t streams_;
  Poisoned memory_;
};

inline void expect_same(const Tree& got, const Tree& want) {
  ASSERT_EQ(got.rows, want.rows);
  const auto n = static_cast<size_t>(want.rows);
  const auto equal = [n](const auto& a, const auto& b) {
    return std::memcmp(a.data(), b.data(), n * sizeof(a[0])) == 0;
  };
  EXPECT_TRUE(equal(got.token, want.token));
  EXPECT_TRUE(equal(got.parent, want.parent));
  EXPECT_TRUE(equal(got.depth, want.depth));
  EXPECT_TRUE(equal(got.rank, want.rank));
  EXPECT_TRUE(equal(got.first_child, want.first_child));
  EXPECT_TRUE(equal(got.next_sibling, want.next_sibling));
  EXPECT_TRUE(equal(got.log_prob, want.log_prob));
  const Status status = validate(got);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

}  // namespace ddtree::cuda
