#include "ditrain/memory/allocator.hpp"

#include <cstdlib>
#include <cstring>

#include "ditrain/base/error.hpp"
#include "ditrain/platform/pages.hpp"

namespace ditrain::memory {

void* Allocator::allocate(size_t bytes) {
  void* p = allocate_block(bytes);
  ++allocations_;
  count_.add(bytes);
  return p;
}

void Allocator::deallocate(void* p, size_t bytes) {
  deallocate_block(p, bytes);
  count_.remove(bytes);
}

namespace {

// Large blocks are pages of their own (zeroed by the kernel on first touch, so the touching thread places them).
constexpr size_t kPagesFrom = size_t{256} << 10;

class SystemMemory final : public Allocator {
 public:
  std::string name() const override { return "system"; }

 private:
  void* allocate_block(size_t bytes) override {
    if (bytes >= kPagesFrom) return platform::map_pages(bytes);
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* p = std::aligned_alloc(kAlignment, rounded);
    if (p == nullptr)
      throw RunError({.where = "memory", .what = "out of memory for " + std::to_string(bytes) + " bytes"});
    return std::memset(p, 0, rounded);
  }
  void deallocate_block(void* p, size_t bytes) override {
    if (bytes >= kPagesFrom) return platform::unmap_pages(p, bytes);
    std::free(p);
  }
};

}  // namespace

Allocator& system_memory() {
  static auto* memory = new SystemMemory;  // never destroyed: tensors of static lifetime may outlive everything
  return *memory;
}

}  // namespace ditrain::memory
