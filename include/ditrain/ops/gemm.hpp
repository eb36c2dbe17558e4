// A GEMM on the team: split over workers, each block by kernels::gemm.
#pragma once
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// c = epilogue(op(a) op(b) + ...), see kernels::GemmArgs; the pointers must stay valid (pinned) during the call. Row
/// sums are overwritten unless c is accumulated. Weights that training changes are packed in every call: that takes the
/// time of some 9 rows of a product with them (0.4 % of one of 2,048 rows), shared by the workers of a packing group.
/// Weights of inference-only networks come packed (GemmArgs::packed_b).
void gemm(Context& ctx, const kernels::GemmArgs& args);

}  // namespace ditrain::ops
