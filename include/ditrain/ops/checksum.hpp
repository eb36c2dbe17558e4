// A checksum of a tensor's bytes, as fast as memory is read.
#pragma once
#include <cstdint>

#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Tells tensors apart that differ in any bit: any single changed element changes it for certain, other changes with a
/// chance of 2^-64 to miss them. No defence against intent.
/// Numerics: depends on the bytes, their order and, of an arena in parts, on how it is cut, not on the number of
///           workers; -0 and 0 differ
/// Threads:  blocks of constant size, shared out to the workers
uint64_t checksum(Context& ctx, const Tensor& x);

}  // namespace ditrain::ops
