// The micro-kernels in f32 over packed panels, which products and attention share; see common.inc.
// clang-format off: each needs those above it
#include "common.inc"
#include "panels.inc"
#include "micro_kernel.inc"
// clang-format on

namespace ditrain::kernels::DITRAIN_ISA {
const MicroKernels f32_panel_kernels = kMicroKernels<Arithmetic::kF32, ALayout::kPanel>;
}
