// The kernels for baseline; flags in module.cmake.
#define DITRAIN_ISA baseline
#define DITRAIN_LANES 4      // f32 lanes of a register
#define DITRAIN_TILE_ROWS 4  // see micro_kernel.inc
#include "all_kernels.inc"
