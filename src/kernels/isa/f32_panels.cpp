// The micro-kernels in f32 over packed panels, which products and attention share; see common.inc.
#include "common.inc"
#include "panels.inc"
#include "micro_kernel.inc"

namespace ditrain::kernels::DITRAIN_ISA {
const MicroKernels f32_panel_kernels = kMicroKernels<Arithmetic::kF32, ALayout::kPanel>;
}
