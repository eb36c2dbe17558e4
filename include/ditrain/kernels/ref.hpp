// The reference of every operator of ditrain/kernels/operators.inc: the same function on f32 arrays (T is float), in
// plain loops with f64 arithmetic. Tests compare with it. The references of GEMM and attention are declared in their
// headers.
#pragma once
#include "ditrain/kernels/operators.hpp"

namespace ditrain::kernels::ref {

#define DITRAIN_OPERATOR(name, title, result, parameters, arguments) roles::Signatures<float>::name name;
#define DITRAIN_ACTIVATION DITRAIN_OPERATOR
#include "ditrain/kernels/operators.inc"

}  // namespace ditrain::kernels::ref
