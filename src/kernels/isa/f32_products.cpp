// Products in f32; see common.inc.
#define DITRAIN_PRODUCTS f32_products
#define DITRAIN_ARITHMETIC Arithmetic::kF32
#include "products.inc"
