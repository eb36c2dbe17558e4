// Attention of bf16 tensors on a tile unit; see common.inc.
// clang-format off: each needs those above it
#include "common.inc"
#include "panels.inc"
#include "micro_kernel.inc"
#include "amx_registers.inc"
#include "tile_jobs.inc"
#include "tile_attention.inc"
// clang-format on

namespace ditrain::kernels::DITRAIN_ISA {

extern const AttentionKernels attention;
const AttentionKernels attention = {
    .name = DITRAIN_QUOTE(DITRAIN_ISA),
    .tile_rows = kSide,
    .tile_cols = kSide,
    .forward = attention_forward,
    .backward = attention_backward,
    .scratch_bytes = attention_scratch_bytes,
    .forward_scratch_bytes = attention_forward_scratch_bytes,
};

}  // namespace ditrain::kernels::DITRAIN_ISA
