// The kernels for Arm's SVE2, compiled once per length of the vectors: module.cmake defines DITRAIN_ISA and
// DITRAIN_LANES and tells the compiler the length, so that it makes SVE instructions of the vector types.
#if __ARM_FEATURE_SVE_BITS != 32 * DITRAIN_LANES
#error "compile with -msve-vector-bits=32 * DITRAIN_LANES"
#endif
#define DITRAIN_TILE_ROWS (DITRAIN_LANES == 8 ? 8 : 12)  // see micro_kernel.inc
#include "all_kernels.inc"
