// The memory of a tensor, which may move while nothing uses it. A raw pointer is valid only between `acquire` and
// `release`, which ops call around a kernel. A plain storage stays in one block for ever. A movable storage belongs to
// a Mover (a manager of memory tiers), which gives it memory (a place) when it is needed and may take it away again
// while nothing holds the storage. A storage in parts is a list of storages, held part by part (Tensor::parts).
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ditrain/memory/allocator.hpp"

namespace ditrain {

class Storage;

/// What a holder does with a tensor. After a write, the mover has to copy the tensor out again.
enum class Access { kReadWrite, kRead };

/// Decides where movable storages are.
class Mover {
 public:
  virtual ~Mover() = default;
  /// acquire() calls it if the storage has no place. Returns when the storage has one and is held for the caller.
  /// Threads: any number at once, for the same storage too
  virtual void bring(Storage& storage) = 0;
  /// Every acquire() that may write calls it while watches() is set, once the storage is held.
  virtual void note_use(Storage&) {}
  bool watches() const { return watches_.load(std::memory_order_relaxed); }

 protected:
  void set_watches(bool on) { watches_ = on; }

 private:
  std::atomic<bool> watches_{false};
};

class Storage {
 public:
  Storage(memory::Allocator& home, size_t bytes);  ///< zeroed
  /// A movable storage, at first without a place; `mover` must outlive it. `number` is the mover's number for it.
  Storage(Mover& mover, size_t bytes, int64_t number);
  explicit Storage(std::vector<std::shared_ptr<Storage>> parts);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  /// Errors: LogicFault for a storage in parts
  std::byte* acquire(Access access = Access::kReadWrite) {
    if (holders_.fetch_add(1) < 0) acquire_slowly();
    if (mover_ != nullptr && access != Access::kRead && mover_->watches()) mover_->note_use(*this);
    return data_;
  }
  void release() { --holders_; }
  void hold_again() { ++holders_; }  ///< by its mover, which has just released it

  size_t bytes() const { return bytes_; }
  int64_t number() const { return number_; }
  const std::vector<std::shared_ptr<Storage>>& parts() const { return parts_; }

  // For its mover.
  /// Gives it a place, held once by the caller.
  void place(std::byte* data);
  /// Takes the place away, unless it is held.
  bool try_leave();
  /// Holds it, if it has a place.
  bool try_hold();
  bool is_placed() const { return holders_ >= 0; }
  bool is_held() const { return holders_ > 0; }

 private:
  void acquire_slowly();

  // holders_ counts from kNoPlace if the storage has no place: then it stays negative whatever is added meanwhile.
  static constexpr int64_t kNoPlace = INT64_MIN / 2;
  memory::Allocator* home_ = nullptr;
  Mover* mover_ = nullptr;
  size_t bytes_ = 0;
  int64_t number_ = 0;
  std::byte* data_ = nullptr;
  std::atomic<int64_t> holders_{0};
  std::vector<std::shared_ptr<Storage>> parts_;
};

/// Makes the storages of arenas and activations.
class StorageSource {
 public:
  virtual ~StorageSource() = default;
  /// `name`: of the tensor or of the part of an arena, unique.
  virtual std::shared_ptr<Storage> make(const std::string& name, size_t bytes) = 0;
};

/// Plain storages.
class PlainSource final : public StorageSource {
 public:
  explicit PlainSource(memory::Allocator& home = memory::system_memory()) : home_(home) {}
  std::shared_ptr<Storage> make(const std::string&, size_t bytes) override {
    return std::make_shared<Storage>(home_, bytes);
  }

 private:
  memory::Allocator& home_;
};

}  // namespace ditrain
