// Operands of benches: tensors that the team fills before it reads them, so that their pages are on its NUMA nodes.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::bench {

/// Fills a tensor, f32 or bf16, with uniform random values in [low, high).
void fill_random(ops::Context& ctx, const Tensor& t, float low, float high);
Tensor random_tensor(ops::Context& ctx, const Shape& shape, float low, float high, DType type = DType::kF32);

}  // namespace ditrain::bench
