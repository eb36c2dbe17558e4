#include "ditrain/tensor/storage.hpp"

#include "ditrain/base/error.hpp"

namespace ditrain {

Storage::Storage(memory::Allocator& home, size_t bytes)
    : home_(&home), bytes_(bytes), data_(bytes ? static_cast<std::byte*>(home.allocate(bytes)) : nullptr) {}

Storage::Storage(Mover& mover, size_t bytes, int64_t number)
    : mover_(&mover), bytes_(bytes), number_(number), holders_(kNoPlace) {}

Storage::Storage(std::vector<std::shared_ptr<Storage>> parts) : holders_(kNoPlace), parts_(std::move(parts)) {
  for (const auto& part : parts_) bytes_ += part->bytes();
}

Storage::~Storage() {
  if (home_ != nullptr && data_ != nullptr) home_->deallocate(data_, bytes_);
}

void Storage::acquire_slowly() {
  --holders_;
  DITRAIN_CHECK(mover_ != nullptr, "memory in parts is held part by part");
  mover_->bring(*this);
}

void Storage::place(std::byte* data) {
  DITRAIN_CHECK(!is_placed(), "a storage with two places");
  data_ = data;
  holders_ += 1 - kNoPlace;
}

bool Storage::try_leave() {
  int64_t none = 0;
  return holders_.compare_exchange_strong(none, kNoPlace);
}

bool Storage::try_hold() {
  if (holders_.fetch_add(1) >= 0) return true;
  --holders_;
  return false;
}

}  // namespace ditrain
