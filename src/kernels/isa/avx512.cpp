// The kernels for avx512; flags in module.cmake.
#define DITRAIN_ISA avx512
#define DITRAIN_LANES 16      // f32 lanes of a register
#define DITRAIN_TILE_ROWS 14  // see micro_kernel.inc
#include "all_kernels.inc"
