// Copies between tiers in memory.
#pragma once
#include <cstddef>

namespace ditrain::memory {

/// Copies past the caches: what is copied is used much later, or by other cores. Stores are non-temporal where the
/// processor has such (x86-64, 64-bit Arm). All three are multiples of 64; the ranges do not overlap.
void stream_copy(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace ditrain::memory
