// The kernels of amx_bf16 with the tile unit in plain C++: for tests on machines that have none; see
// tests/kernels/models.cpp.
#define DITRAIN_ISA amx_model
#define DITRAIN_LANES 16
#define DITRAIN_TILE_ROWS 14
#define DITRAIN_TILE_UNIT "amx_model.inc"
#include "all_kernels.inc"
