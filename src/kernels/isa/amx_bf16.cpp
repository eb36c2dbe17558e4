// The kernels for amx_bf16: those of avx512_bf16 with gemm's products of bf16 pairs on the tile unit; flags in
// module.cmake.
#define DITRAIN_ISA amx_bf16
#define DITRAIN_LANES 16
#define DITRAIN_TILE_ROWS 14
#define DITRAIN_TILE_UNIT "amx_unit.inc"
#include "all_kernels.inc"
