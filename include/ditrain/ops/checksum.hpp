// A checksum of a tensor's bytes, as fast as memory is read.
#pragma once
#include <cstdint>

#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// A 64-bit checksum. A single changed element always changes it; other changes are missed with probability 2^-64. It
/// is not secure against forgery.
/// Numerics: depends on the bytes, their order and, for an arena in parts, on the parts, not on the number of workers;
///           -0 and 0 differ
/// Threads:  workers share blocks of constant size
uint64_t checksum(Context& ctx, const Tensor& x);

}  // namespace ditrain::ops
