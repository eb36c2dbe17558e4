// Products in f32; see common.inc.
#define DITRAIN_PRODUCTS f32_products
#define DITRAIN_ARITHMETIC Arithmetic::kF32
#include "products.inc"

#ifndef DITRAIN_SME_LANES
namespace ditrain::kernels::DITRAIN_ISA {
const MicroKernels f32_panel_kernels = kMicroKernels<Arithmetic::kF32, ALayout::kPanel>;
}
#endif
