// A matrix product on the team: cut over workers, each block by kernels::gemm.
#pragma once
#include "ditrain/kernels/gemm.hpp"
#include "ditrain/ops/context.hpp"

namespace ditrain::ops {

/// c = epilogue(op(a) op(b) + ...), see kernels::GemmArgs; the pointers must stay valid (pinned) during the call. Row
/// sums are overwritten unless c is accumulated.
void gemm(Context& ctx, const kernels::GemmArgs& args);

}  // namespace ditrain::ops
