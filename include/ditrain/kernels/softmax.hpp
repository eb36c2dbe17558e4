// Softmax of the rows of a matrix. (Attention has a running one of its own.)
#pragma once
#include <cstdint>

namespace ditrain::kernels {

/// y[r,:] = exp(x[r,:] - max x[r,:]) / sum exp(x[r,:] - max x[r,:]); rows of cols contiguous elements. y may be x.
/// Numerics: f32; cols fixes the order of the sums. -infinity gives 0. A row with NaN or +infinity, or with -infinity
///           only, becomes NaN, as in torch
void softmax_forward(const float* x, float* y, int64_t rows, int64_t cols);
/// dx[r,:] = y[r,:] (dy[r,:] - sum_j y[r,j] dy[r,j]), overwritten; y is what forward wrote. dx may be dy or y.
void softmax_backward(const float* y, const float* dy, float* dx, int64_t rows, int64_t cols);

}  // namespace ditrain::kernels
