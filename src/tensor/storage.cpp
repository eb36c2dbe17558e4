#include "ditrain/tensor/storage.hpp"

#include <cstring>

#include "ditrain/base/error.hpp"

namespace ditrain {

Storage::Storage(memory::Allocator& home, size_t bytes)
    : home_(&home), bytes_(bytes), data_(bytes ? static_cast<std::byte*>(home.allocate(bytes)) : nullptr) {}

Storage::~Storage() {
  if (data_ != nullptr) home_->deallocate(data_, bytes_);
}

std::byte* Storage::acquire() {
  ++holders_;
  return data_;
}

void Storage::release() {
  [[maybe_unused]] const int before = holders_--;
  DITRAIN_DCHECK(before > 0, "released more often than acquired");
}

void Storage::move_to(memory::Allocator& home) {
  DITRAIN_CHECK(holders_ == 0, "storage is in use and cannot move");
  if (data_ == nullptr || &home == home_) return;
  auto* to = static_cast<std::byte*>(home.allocate(bytes_));
  std::memcpy(to, data_, bytes_);
  home_->deallocate(data_, bytes_);
  home_ = &home, data_ = to;
}

}  // namespace ditrain
