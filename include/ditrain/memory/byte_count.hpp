// Counts bytes in use and their peak over several allocators. Data in the fast tier comes from a pool, from ordinary
// allocators and from memory that ranks share; only the sum has to fit.
#pragma once
#include <atomic>
#include <string>

#include "ditrain/memory/allocator.hpp"

namespace ditrain::memory {

/// Threads: any number at once.
class ByteCount {
 public:
  void add(size_t bytes) {
    const size_t now = in_use_ += bytes;
    size_t peak = peak_;
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) continue;
  }
  void remove(size_t bytes) { in_use_ -= bytes; }
  size_t in_use() const { return in_use_; }
  size_t peak() const { return peak_; }

 private:
  std::atomic<size_t> in_use_{0}, peak_{0};
};

/// Hands out the blocks of another allocator and counts them. Allocator and count have to outlive the blocks.
class CountedMemory final : public Allocator {
 public:
  CountedMemory(Allocator& home, ByteCount& count) : home_(home), count_(count) {}
  std::string name() const override { return home_.name(); }

 private:
  void* allocate_block(size_t bytes) override {
    void* const block = home_.allocate(bytes);
    count_.add(bytes);
    return block;
  }
  void deallocate_block(void* p, size_t bytes) override {
    home_.deallocate(p, bytes);
    count_.remove(bytes);
  }

  Allocator& home_;
  ByteCount& count_;
};

}  // namespace ditrain::memory
