// Products of features in f64: what covariances, kernels and distances between sets are made of. Every element of a
// result is one chain of multiply-adds over increasing k, through the same instructions wherever it lies, so that the
// number of workers changes no bit.
// The products of module kernels are of f32 and bf16 with sums in f32, too coarse for covariances whose roots are
// taken. These are in f64 and a small part of an evaluation; so one small loop here is compiled for several instruction
// sets, where a family of kernels would be a table, descriptors and tests for one caller. The bits may differ between
// instruction sets, and DITRAIN_ISA does not choose among them.
#pragma once
#include <cstdint>

#include "ditrain/parallel/team.hpp"

namespace ditrain::eval {

/// out[i,j] = sum over k of a[i,k] b[j,k], for rows of two sets of features.
/// Shapes:   a [m,d], b [n,d], out [m,n], row-major
/// Types:    T is float or double; sums f64
/// Threads:  the workers of `team` share the rows of a
template <class T>
void row_products(parallel::Team& team, const T* a, int64_t m, const T* b, int64_t n, int64_t d, double* out);

/// out[j,k] = sum over i of (x[i,j] - mean[j]) (x[i,k] - mean[k]); symmetric.
/// Shapes:   x [n,d], mean [d], out [d,d]
template <class T>
void centered_products(parallel::Team& team, const T* x, int64_t n, int64_t d, const double* mean, double* out);

}  // namespace ditrain::eval
