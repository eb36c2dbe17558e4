// The kernels for baseline; flags in module.cmake.
#define DITRAIN_ISA baseline
#define DITRAIN_LANES 4      // f32 lanes of a register
#if defined(__aarch64__)
#define DITRAIN_TILE_ROWS 12  // see micro_kernel.inc
#else
#define DITRAIN_TILE_ROWS 4
#endif
#include "all_kernels.inc"
