// The words with which ditrain/kernels/operators.inc describes the parameters of an operator. Here they are plain
// pointers and numbers: In<float, PerColumn> gate is const float* gate. For tests and benches,
// ditrain/kernels/described.hpp defines the same words as distinct types, which tell which arrays an operator reads,
// writes or updates, and how long they are.
#pragma once
#include <cstdint>

#include "ditrain/base/dtype.hpp"
#include "ditrain/kernels/elementwise.hpp"
#include "ditrain/kernels/loss.hpp"
#include "ditrain/kernels/softmax.hpp"

namespace ditrain::kernels::roles {

// Lengths of an array.
struct Each;       ///< n elements, or rows x cols without gaps
struct PerRow;     ///< rows elements
struct PerColumn;  ///< cols elements
struct Strided;    ///< rows x cols, `stride` elements from row to row

// Values that an array may hold.
struct Any;
struct NotNegative;

template <class E, class Length = Each, class Values = Any>
using In = const E*;  ///< read
template <class E, class Length = Each>
using Out = E*;  ///< overwritten
template <class E, class Length = Each, class Values = Any>
using Update = E*;  ///< read and overwritten
template <class Array>
using OrNull = Array;  ///< null: not wanted

using Count = int64_t;
using Rows = int64_t;
using Columns = int64_t;
using Stride = int64_t;

/// The types of the operators: Signatures<float>::gelu_forward is void(const float* x, float* y, int64_t n).
template <class T>
struct Signatures {
#define DITRAIN_OPERATOR(name, title, result, parameters, arguments) using name = result parameters;
#define DITRAIN_ACTIVATION DITRAIN_OPERATOR
#include "ditrain/kernels/operators.inc"
};

}  // namespace ditrain::kernels::roles
