// The kernels for avx2; flags in module.cmake.
#define DITRAIN_ISA avx2
#define DITRAIN_LANES 8      // f32 lanes of a register
#define DITRAIN_TILE_ROWS 6  // see micro_kernel.inc
#include "all_kernels.inc"
