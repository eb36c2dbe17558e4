// Which range of a pool belongs to which tensor. Tensors of very different sizes come and go in a pool of fixed size,
// so that space for one may need the ranges of several neighbours: the map finds the row of neighbouring ranges that
// costs least to evict.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

namespace ditrain::memory {

class SlotMap {
 public:
  static constexpr int64_t kFree = -1;
  /// The cost of taking away an owner's range; nullopt: it cannot be taken.
  using Cost = std::function<std::optional<double>(int64_t owner)>;
  /// A row of neighbouring ranges: where it begins, and their owners.
  struct Window {
    size_t offset = 0;
    std::vector<int64_t> owners = {};
  };

  explicit SlotMap(size_t bytes);

  /// Finds the cheapest row of neighbouring ranges, free or takeable, with at least `bytes` together: the one with the
  /// least maximum cost, then the fewest owners, then the lowest address. Returns none if no row is large enough.
  std::optional<Window> find(size_t bytes, const Cost& cost) const;
  /// Gives [offset, offset + bytes), which must be free, to an owner.
  void take(size_t offset, size_t bytes, int64_t owner);
  void free(size_t offset);  ///< frees a range that take() gave
  /// The owners, ordered by address.
  std::vector<int64_t> owners() const;
  /// The lowest address to which a taken range could move across free space: the end of its nearest neighbour below.
  size_t lowest(size_t offset) const;

  size_t used_bytes() const { return used_; }
  size_t bytes() const { return bytes_; }

 private:
  struct Range {
    size_t bytes;
    int64_t owner;
  };
  std::map<size_t, Range> ranges_;  // by offset, without gaps; no two free ones side by side
  size_t bytes_, used_ = 0;
};

}  // namespace ditrain::memory
