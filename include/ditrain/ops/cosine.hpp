// Cosines between the rows of two tensors, and their gradient by the first.
#pragma once
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     cosines[r] = a[r,:] . b[r,:] / (|a[r,:]| |b[r,:]|), norms at least 1e-12
/// Shapes:   a, b [..., C] f32; cosines: one f64 for each row, overwritten
/// Numerics: f64 sums in an order that C alone decides
void row_cosines(Context& ctx, const Tensor& a, const Tensor& b, double* cosines);
/// Grads:    da is added to: da[r,:] += scale d cosines[r] / d a[r,:]; cosines as row_cosines gives them
void add_row_cosines_gradient(Context& ctx, const Tensor& a, const Tensor& b, const double* cosines, double scale,
                              const Tensor& da);

}  // namespace ditrain::ops
