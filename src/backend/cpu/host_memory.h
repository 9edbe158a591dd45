// Host memory of the CPU backend. Large blocks ask for huge pages: weights are read in long streams, and with 4 KB
// pages the page walks cost up to half of the memory bandwidth.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tensor/buffer.h"

namespace ddtree::cpu {

// 64-byte aligned (2 MB for large blocks), not initialised; an empty Buffer when there is no memory.
Buffer allocate_host(int64_t bytes);

// Packs the many blocks of a model into few large allocations, because a huge page needs 2 MB at a stretch.
// A chunk goes back to the system with its last block.
class WeightArena {
 public:
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept {
      std::swap(arena_, other.arena_);
      std::swap(chunk_, other.chunk_);
      std::swap(data_, other.data_);
      return *this;
    }
    ~Block() {
      if (arena_ != nullptr) arena_->release(chunk_);
    }
    uint8_t* data() const { return data_; }  // 64-byte aligned; null when there was no memory

   private:
    friend class WeightArena;
    WeightArena* arena_ = nullptr;
    void* chunk_ = nullptr;
    uint8_t* data_ = nullptr;
  };

  // A block without data when there is no memory. Not thread-safe: one owner, as the backend.
  Block allocate(int64_t bytes);

 private:
  struct Chunk {
    Buffer memory;
    int64_t used = 0;
    int64_t blocks = 0;
  };
  void release(void* chunk);

  std::vector<std::unique_ptr<Chunk>> chunks_;  // the last one is being filled
};

// A reusable array that only grows. Contents are lost when it grows.
template <class T>
class Scratch {
 public:
  T* grow(int64_t n) {
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    if (bytes > memory_.bytes()) {
      memory_ = Buffer();
      memory_ = allocate_host(bytes + bytes / 4);
      CHECK(memory_.data() != nullptr);
    }
    return data();
  }
  T* data() const { return static_cast<T*>(memory_.data()); }

 private:
  Buffer memory_;
};

}  // namespace ddtree::cpu
