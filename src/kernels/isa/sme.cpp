// The kernels for Arm's matrix unit (SME): products there, everything else by SVE2. Compiled once per pair of lengths,
// DITRAIN_SME_LANES those of the unit (streaming mode), DITRAIN_LANES those outside; see module.cmake.
#if __ARM_FEATURE_SVE_BITS != 32 * DITRAIN_LANES
#error "compile with -msve-vector-bits=32 * DITRAIN_LANES"
#endif
#define DITRAIN_TILE_ROWS (2 * DITRAIN_SME_LANES)
#include "all_kernels.inc"
