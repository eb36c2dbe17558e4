// The operators on arrays (ditrain/kernels/operators.inc), random numbers and passes over memory; see common.inc.
// clang-format off: each needs those above it
#include "../operator_table.hpp"
#include "common.inc"
#include "panels.inc"
#include "activation.inc"
#include "elementwise.inc"
#include "layer_norm.inc"
#include "moments.inc"
#include "group_norm.inc"
#include "optimizer.inc"
#include "random.inc"
#include "softmax.inc"
#include "loss.inc"
#include "stream.inc"
// clang-format on

namespace ditrain::kernels::DITRAIN_ISA {

namespace {
template <class T>
constexpr roles::ActivationKernels<T> kActivationKernels = {
#define DITRAIN_ACTIVATION(name, title, result, parameters, arguments) .name = name<T>,
#include "ditrain/kernels/operators.inc"
};

#if defined(__AVX512BF16__)
constexpr bool kFlushesToBF16 = true;
#else
constexpr bool kFlushesToBF16 = false;
#endif
}  // namespace

extern const ElementwiseKernels elementwise;
const ElementwiseKernels elementwise = {
    .name = DITRAIN_QUOTE(DITRAIN_ISA),
    .flushes_to_bf16 = kFlushesToBF16,
    .f32 = kActivationKernels<float>,
    .bf16 = kActivationKernels<BFloat16>,
#define DITRAIN_OPERATOR(name, title, result, parameters, arguments) .name = name,
#include "ditrain/kernels/operators.inc"
    .random_uniform = random_uniform,
    .random_normal = random_normal,
    .stream_burst = stream_burst,
    .exp = exp_array,
    .exp2 = exp2_array,
    .random_bits = random_bits,
    .box_muller = box_muller,
};

}  // namespace ditrain::kernels::DITRAIN_ISA
