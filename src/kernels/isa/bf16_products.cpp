// Products of operands that are rounded to bf16; see common.inc.
#define DITRAIN_PRODUCTS bf16_products
#define DITRAIN_ARITHMETIC kBF16Arithmetic
#include "products.inc"

#if !defined(DITRAIN_SME_LANES) && !defined(DITRAIN_TILE_UNIT) && DITRAIN_HAS_PAIRS
namespace ditrain::kernels::DITRAIN_ISA {
const MicroKernels pair_panel_kernels = kMicroKernels<Arithmetic::kPairs, ALayout::kPanel>;
}
#endif
