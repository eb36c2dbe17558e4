// Fills arrays with normal noise, on all workers of the team.
#pragma once
#include <span>

#include "ditrain/base/random.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     out[i, j] = N(0, 1) number j of keys[i] (ditrain/kernels/random.hpp)
/// Shapes:   out [keys.size(), elements]
/// Threads:  splits by elements, so that few samples keep many workers busy too; bit-identical for any team
void fill_normal(Context& ctx, std::span<const RandomKey> keys, int64_t elements, float* out);

}  // namespace ditrain::ops
