#include "backend/cpu/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"

namespace ddtree::cpu {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kLarge = int64_t{256} << 10;  // from here on in huge pages, the last one partly unused
constexpr int64_t kTouched =
    int64_t{8} << 20;  // up to here touched at once: later, a page fault costs as much as a verb
constexpr int64_t kChunkBytes = int64_t{16} << 20;

}  // namespace

Buffer allocate_host(int64_t bytes) {
  const bool large = bytes >= kLarge;
  const int64_t alignment = large ? kHugePage : kLine;
  if (bytes > INT64_MAX - alignment) return Buffer();
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), alignment);
  void* data = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(size));
  if (data == nullptr) return Buffer();
  // Advice only: where it is not taken, the memory works all the same.
  if (large) madvise(data, static_cast<size_t>(size), MADV_HUGEPAGE);
  if (size <= kTouched) std::memset(data, 0, static_cast<size_t>(size));
  return Buffer(data, bytes, [](void* p, int64_t) { std::free(p); });
}

WeightArena::Block WeightArena::allocate(int64_t bytes) {
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), kLine);
  if (chunks_.empty() || chunks_.back()->used + size > chunks_.back()->memory.bytes()) {
    auto chunk = std::make_unique<Chunk>();
    chunk->memory = allocate_host(std::max(size, kChunkBytes));
    if (chunk->memory.data() == nullptr) return Block();
    chunks_.push_back(std::move(chunk));
  }
  Chunk& chunk = *chunks_.back();
  Block block;
  block.arena_ = this;
  block.chunk_ = &chunk;
  block.data_ = static_cast<uint8_t*>(chunk.memory.data()) + chunk.used;
  chunk.used += size;
  ++chunk.blocks;
  return block;
}

void WeightArena::release(void* chunk) {
  const auto at = std::find_if(chunks_.begin(), chunks_.end(), [&](const auto& c) { return c.get() == chunk; });
  CHECK(at != chunks_.end());
  if (--(*at)->blocks == 0) chunks_.erase(at);
}

}  // namespace ddtree::cpu
