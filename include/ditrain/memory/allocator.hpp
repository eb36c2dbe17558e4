// The interface to memory for tensors. An Allocator hands out 64-byte aligned blocks and counts them. Storage can move
// from one allocator to another while nothing holds it (see tensor/storage.hpp).
#pragma once
#include <atomic>
#include <cstddef>
#include <string>

namespace ditrain::memory {

inline constexpr size_t kAlignment = 64;  // bytes: one cache line and one AVX-512 register

/// Bytes in use and their peak, over one or several allocators.
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

class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual std::string name() const = 0;

  /// Returns a zero-filled block of at least `bytes` (> 0), aligned to kAlignment.
  /// Errors: RunError, with the bytes requested, if the system has no memory left
  void* allocate(size_t bytes);
  void deallocate(void* p, size_t bytes);

  size_t bytes_in_use() const { return count_.in_use(); }
  size_t peak_bytes() const { return count_.peak(); }
  size_t allocations() const { return allocations_; }  ///< number of allocations so far

 protected:
  virtual void* allocate_block(size_t bytes) = 0;
  virtual void deallocate_block(void* p, size_t bytes) = 0;

 private:
  ByteCount count_;
  std::atomic<size_t> allocations_{0};
};

/// The ordinary memory of the machine: anonymous pages, huge ones where the kernel grants them. Lives for ever.
Allocator& system_memory();

}  // namespace ditrain::memory
