// A GEMM on the team: split over workers, each block by kernels::gemm.
#pragma once
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// Math:     c = epilogue(op(a) op(b) + ...), see kernels::GemmArgs. Row sums are overwritten unless c is accumulated
/// Memory:   the pointers must stay valid (pinned) during the call
/// Speed:    weights that training changes are packed in every call, by the workers of a packing group together; on a
///           matrix unit by each worker that reads them. That takes the time of some 9 rows of the product (0.4 % of
///           2,048 rows), on a unit of some 350. Weights of inference-only networks come packed (GemmArgs::packed_b)
void gemm(Context& ctx, const kernels::GemmArgs& args);

/// The product with a normalised, in the workspace of operand a, if kernels::is_better_normalised_before; else as it
/// is. For several products of the same a, which would each make it.
kernels::GemmArgs normalised_before(Context& ctx, const kernels::GemmArgs& args);

}  // namespace ditrain::ops
