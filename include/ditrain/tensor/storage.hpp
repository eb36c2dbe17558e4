// Relocatable memory of tensors. A raw pointer is valid only between `acquire` and `release`, which ops take around a
// kernel; in between nothing holds the bytes, and a tier manager may `move_to` another allocator.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "ditrain/memory/allocator.hpp"

namespace ditrain {

class Storage {
 public:
  Storage(memory::Allocator& home, size_t bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* acquire();
  void release();

  /// Copies the bytes into `home` and frees the old block. Errors: LogicFault while it is held.
  void move_to(memory::Allocator& home);

  size_t bytes() const { return bytes_; }
  const memory::Allocator& home() const { return *home_; }

 private:
  memory::Allocator* home_;
  size_t bytes_;
  std::byte* data_;
  std::atomic<int> holders_{0};
};

}  // namespace ditrain
