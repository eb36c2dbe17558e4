// The kernels for avx512_bf16: those of avx512 with products of bf16 pairs; flags in module.cmake.
#define DITRAIN_ISA avx512_bf16
#define DITRAIN_LANES 16      // f32 lanes of a register
#define DITRAIN_TILE_ROWS 14  // see micro_kernel.inc
#include "all_kernels.inc"
