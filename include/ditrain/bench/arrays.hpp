// Operands of benches: tensors filled by the team that reads them, so that their pages lie where it works.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::bench {

/// A tensor of uniform random values in [low, high); f32 or bf16.
Tensor random_tensor(ops::Context& ctx, const Shape& shape, float low, float high, DType type = DType::kF32);

}  // namespace ditrain::bench
