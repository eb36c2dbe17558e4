// Static partition: which worker has which part of a range. Depends on nothing but its arguments.
#pragma once
#include <algorithm>
#include <cstdint>

namespace ditrain::parallel {

/// Elements begin <= i < end.
struct Range {
  int64_t begin = 0, end = 0;
  constexpr int64_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  friend constexpr bool operator==(const Range&, const Range&) = default;
};

/// Part `part` of 0 <= i < n split into `parts` contiguous ranges at multiples of `grain`: together they cover all
/// once, in order, and their sizes differ by at most one grain (the last piece of n may be a shorter one). Parts may be
/// empty. Needs n >= 0, 0 <= part < parts, grain >= 1.
constexpr Range partition(int64_t n, int part, int parts, int64_t grain = 1) {
  const int64_t pieces = n / grain + (n % grain != 0);
  const int64_t each = pieces / parts, rest = pieces % parts;
  const int64_t first = part * each + std::min<int64_t>(part, rest);
  const int64_t last = first + each + (part < rest ? 1 : 0);
  // `last` may be the piece that n cuts short; first * grain <= n always, because first <= pieces (clipped the same
  // way).
  const auto clip = [n, grain](int64_t piece) { return piece > n / grain ? n : piece * grain; };
  return {clip(first), clip(last)};
}

}  // namespace ditrain::parallel
