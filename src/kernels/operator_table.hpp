// The functions that an instruction set has for work on arrays: the operators of ditrain/kernels/operators.inc, random
// numbers and passes over memory. See kernel_table.hpp for the other families.
#pragma once
#include <cstdint>

#include "ditrain/kernels/measure.hpp"
#include "ditrain/kernels/operators.hpp"
#include "ditrain/kernels/random.hpp"

namespace ditrain::kernels {

namespace roles {

/// The operators on activations of type T.
template <class T>
struct ActivationKernels {
#define DITRAIN_ACTIVATION(name, title, result, parameters, arguments) typename Signatures<T>::name* name;
#include "ditrain/kernels/operators.inc"
};

}  // namespace roles

struct ElementwiseKernels {
  const char* name;
  bool flushes_to_bf16;  ///< a subnormal becomes 0 when it is rounded to bf16

  roles::ActivationKernels<float> f32;
  roles::ActivationKernels<BFloat16> bf16;
#define DITRAIN_OPERATOR(name, title, result, parameters, arguments) roles::Signatures<float>::name* name;
#include "ditrain/kernels/operators.inc"

  void (*random_uniform)(const PhiloxSequence&, uint64_t first, float* out, int64_t n);
  void (*random_normal)(const PhiloxSequence&, uint64_t first, float* out, int64_t n);
  decltype(&kernels::stream_pass) stream_burst;
  // Parts of the others, for tests.
  void (*exp)(const float* x, float* y, int64_t n);
  void (*exp2)(const float* x, float* y, int64_t n);
  void (*random_bits)(const PhiloxSequence&, uint64_t first, uint32_t* out, int64_t n);
  void (*box_muller)(const uint32_t* words, float* normals, int64_t pairs);
};

}  // namespace ditrain::kernels
